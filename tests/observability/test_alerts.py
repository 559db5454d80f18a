"""The alert rules of the examples, by Prometheus's own checker."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.support.paths import ROOT

RULES = ROOT / "examples/docker/alerts.yml"
CASES = Path(__file__).with_name("alerts_test.yml")


def test_each_rule_fires_for_a_sick_server_alone(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, of Debian's package prometheus, is not installed")
    for file in (RULES, CASES):
        shutil.copy(file, tmp_path)
    for command in (("check", "rules", RULES.name), ("test", "rules", CASES.name)):
        ended = subprocess.run(
            [promtool, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_each_rule_has_a_case_and_known_metrics() -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    documented = (ROOT / "docs/metrics.md").read_text()
    cases = CASES.read_text()
    for rule in group["rules"]:
        assert f'alertname="{rule["alert"]}"' in cases
        for name in re.findall(r"trtllm_truss_\w+", rule["expr"]):
            assert f"`{name.removesuffix('_bucket')}`" in documented, name
