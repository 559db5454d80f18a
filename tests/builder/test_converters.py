"""The conversion scripts' own versions of packages that requirements.txt replaces."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from tests.support.paths import ROOT

from trtllm_builder import converters
from trtllm_builder.converters import INSTALL_COMMAND, require_importable
from trtllm_builder.run import step_environment
from trtllm_truss.errors import BuildError

REFUSAL = "tokenizers>=0.14,<0.19 is required for a normal functioning of this module."


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a `transformers` that is first on the module path."""
    file = tmp_path / "site/transformers/__init__.py"
    file.parent.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return file


def test_a_package_that_another_one_breaks_is_named_with_the_remedy(library: Path) -> None:
    library.write_text(f"raise ImportError({REFUSAL!r} + '\\nTry: `pip install transformers -U`')")
    environment = {"PYTHONPATH": str(library.parents[1])}
    with pytest.raises(BuildError, match=r"tokenizers>=0\.14,<0\.19 is required") as refused:
        require_importable(sys.executable, environment)
    assert INSTALL_COMMAND in refused.value.message


@pytest.mark.parametrize("text", ["", "raise ModuleNotFoundError('torch')"])
def test_a_missing_package_is_left_to_the_script(library: Path, text: str) -> None:
    library.write_text(text)
    require_importable(sys.executable, {"PYTHONPATH": str(library.parents[1])})


def test_the_installed_versions_come_first(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"PYTHONPATH": str(library.parents[1])}
    folder = tmp_path / "converters"
    monkeypatch.setattr(converters, "FOLDER", folder)
    assert step_environment(variables, ())["PYTHONPATH"].startswith(variables["PYTHONPATH"])
    folder.mkdir()
    assert step_environment(variables, ())["PYTHONPATH"].startswith(f"{folder}:")


@pytest.mark.parametrize("name", ["llama-3-8b-build", "baichuan-13b-tp2-build"])
def test_the_examples_of_old_images_install_them(name: str) -> None:
    config = yaml.safe_load((ROOT / f"examples/{name}/config.yaml").read_text())
    assert INSTALL_COMMAND in config["build_commands"]
