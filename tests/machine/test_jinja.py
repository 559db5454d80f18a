"""An unsafe release of Jinja fails `check` and the start, with the remedy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.support.paths import ROOT

from trtllm_truss.errors import SettingsError
from trtllm_truss.machine.describe import JINJA_RELEASES, check_jinja
from trtllm_truss.serving.preparation import prepare
from trtllm_truss.settings.loading import parse_settings, read_environment
from trtllm_workbench.cli.main import main

REMEDY = "add 'jinja2>=3.1.6,<3.2' to requirements.txt, or run pip install 'jinja2>=3.1.6,<3.2'."


@pytest.mark.parametrize("version", ["3.1.6", "3.1.10", "3.1.7.post1"])
def test_a_safe_release_passes(version: str) -> None:
    assert not [*check_jinja(version)]


@pytest.mark.parametrize("version", ["2.11.3", "3.0.3", "3.1", "3.1.4", "3.1.5", "3.2.0", "4.0"])
def test_an_unsafe_or_unknown_release_is_an_error(version: str) -> None:
    (finding,) = check_jinja(version)
    assert f"Jinja2 {version} is installed" in finding.message
    assert finding.message.endswith(REMEDY)


def test_the_releases_are_those_of_the_requirement() -> None:
    oldest, unknown = (".".join(map(str, release)) for release in JINJA_RELEASES)
    found = re.search(r"(?m)^jinja2(.*)$", (ROOT / "requirements.txt").read_text())
    assert found is not None
    assert found[1] == f">={oldest},<{unknown}"


@pytest.fixture
def _older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install Jinja2 3.1.5, as far as anybody can tell without an import."""
    described = tmp_path / "site/jinja2-3.1.5.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: Jinja2\nVersion: 3.1.5\n")
    monkeypatch.syspath_prepend(described.parent)


@pytest.mark.usefixtures("_older")
def test_check_and_the_start_refuse_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = ROOT / "examples/smollm2-135m-cpu/config.yaml"
    assert main(["check", "--truss", str(ROOT), "--config", str(example), "--json"]) == 3
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["code"] == "unsafe_jinja"
    assert REMEDY in finding["sentence"]
    settings = parse_settings({"model_metadata": {"engine_repository": str(tmp_path)}})
    with pytest.raises(SettingsError, match=r"Jinja2 3\.1\.5 is installed"):
        prepare(settings, read_environment(), None, read_ahead=lambda _: None)
