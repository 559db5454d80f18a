"""Read a page of metrics as endpoint pickers of llm-d and Kubernetes' Inference Extension do.

The rules are those of llm-d/llm-d-router below ``pkg/epp/framework/plugins/datalayer``:
``source/metrics/parser.go`` (9d2341ce; Prometheus's text parser, which refuses a page for one wrong
line), ``extractor/metrics/spec.go`` (45c38549), ``loraspec.go`` (cf5de72c), ``extractor.go``
(03a70c3b) and ``factories.go`` (08cbacc8).
"""

from __future__ import annotations

import re
from typing import NamedTuple

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\n"])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)?\}})? (\S+)(?: (-?\d+))?")
NUMBERED = ("gauge", "counter")


class Series(NamedTuple):
    labels: dict[str, str]
    value: float
    timestamp: int


def families(page: str) -> dict[str, tuple[str, list[Series]]]:
    """Parse a page as ``expfmt`` does; its errors are assertions here."""
    found: dict[str, tuple[str, list[Series]]] = {}
    helped: set[str] = set()
    assert page.endswith("\n")
    for line in page.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in helped, f"second HELP line for metric name {name}"
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in found, f"second TYPE line for metric name {name}"
            assert kind in ("counter", "gauge", "histogram", "summary", "untyped")
            found[name] = (kind, [])
        elif line and not line.startswith("#"):
            matched = SAMPLE.fullmatch(line)
            assert matched, f"invalid sample {line}"
            name, labels, value, timestamp = matched.groups()
            base = re.sub(r"_(bucket|count|sum)$", "", name)
            family = name if name in found else base
            pairs = re.findall(r'([^,=]+)="((?:[^"\\]|\\.)*)"', labels or "")
            assert len(pairs) == len(dict(pairs)), "duplicate label names"
            series = Series(dict(pairs), float(value), int(timestamp or 0))
            found.setdefault(family, ("untyped", []))[1].append(series)
    return found


def latest(page: str, name: str, **labels: str) -> float:
    """Return the value as `getLatestMetric` and `extractValue`: the first of the latest series."""
    kind, series = families(page)[name]
    matching = [one for one in series if labels.items() <= one.labels.items()]
    chosen = max(matching, key=lambda one: one.timestamp)
    return chosen.value if kind in NUMBERED else 0


def adapters(page: str) -> tuple[set[str], set[str], int]:
    """Return running and waiting adapters and their maximum as `populateLoRAMetrics`."""
    _, series = families(page)["vllm:lora_requests_info"]
    labels = max(series, key=lambda one: one.value).labels
    running, waiting = (
        {name.strip() for name in labels[f"{which}_lora_adapters"].split(",") if name.strip()}
        for which in ("running", "waiting")
    )
    return running, waiting, int(labels["max_lora"])
