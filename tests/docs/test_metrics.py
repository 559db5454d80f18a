"""docs/metrics.md lists exactly the metrics of a scrape."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

from trtllm_truss.observability.metrics import Metrics

PAGE = ROOT / "docs/metrics.md"
ROW = re.compile(r"^\| `((?:trtllm_|vllm:)\w+)` \| (\w+) \| ([^|]*)\|", re.MULTILINE)


def test_page_has_every_metric_with_its_type_and_labels() -> None:
    shown = {}
    metrics = Metrics(engine_up=lambda: True, adapters=["a"], build={"image": "", "model": ""})
    metrics.request_started("predict", "a").cached(0)  # without it, its counter is absent
    for family in metrics.collect():
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        suffix = "_total" if family.type == "counter" else ""
        shown[family.name + suffix] = (family.type, labels)
    described = {
        name: (kind, set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(PAGE.read_text(encoding="utf-8"))
    }
    assert described == shown


def test_examples_name_metrics_that_exist() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = {name for name, _, _ in ROW.findall(page)}
    queries = re.findall(r"```promql\n(.*?)```", page, re.DOTALL)
    used = {name for query in queries for name in re.findall(r"trtllm_truss_\w+", query)}
    assert used
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in used} <= names
