"""Each kind of engine is a folder and a line in `engines.kinds`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.checkpoint.checkpoints import llama
from tests.engines.engine_configs import new_config
from tests.support.paths import ROOT

KINDS = ("compiled", "checkpoint", "cpu")

WITHOUT = """
import importlib, pkgutil, sys
from pathlib import Path

import trtllm_truss

deleted, *folders = sys.argv[1:]
assert Path(trtllm_truss.__file__).is_relative_to(Path.cwd())
for module in pkgutil.walk_packages(trtllm_truss.__path__, "trtllm_truss."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("trtllm_truss"):
                raise  # another is of a process that provides it
assert not [name for name in sys.modules if name.startswith(f"trtllm_truss.engines.{deleted}")]

from trtllm_truss.engines.kinds import check_compatibility
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import inspect_engine
from trtllm_truss.engines.kinds import with_settings
from trtllm_truss.errors import ArtifactError
from trtllm_truss.serving.preparation import render_engine
from trtllm_truss.settings.loading import parse_settings

for name in folders:
    folder = Path(name)
    settings = parse_settings({"model_metadata": {"engine_repository": name}})
    try:
        engine = with_settings(inspect_engine(folder), settings, "1.0.0")
    except ArtifactError:
        assert folder.name == deleted
        continue
    assert folder.name != deleted
    check_compatibility(settings, engine, HostInfo(runtime_version="1.0.0"))
    output = folder / "repository"
    render_engine(settings, engine, Path("data"), output, "1.0.0", folder, {})
    assert (output / "tensorrt_llm/config.pbtxt").is_file()
    print(folder.name)
"""

ANSWER = """
import sys
from pathlib import Path

import trtllm_truss
from model.model import Model

assert Path(trtllm_truss.__file__).is_relative_to(Path.cwd())
model = Model({"model_metadata": {"engine_repository": sys.argv[1]}}, {}, Path("data"))
model.load()
print(model.predict({"prompt": "The sky is", "max_tokens": 4, "stream": False}))
loaded = [name for name in sys.modules if name.startswith("trtllm_truss.engines.")]
assert not [name for name in loaded if name.split(".")[2] in ("compiled", "checkpoint")]
"""


def write_engines(folder: Path) -> list[Path]:
    """Write the folders of an engine of each kind, without weights."""
    files = {
        "compiled": {"config.json": json.dumps(new_config()), "rank0.engine": "weights"},
        "checkpoint": {"config.json": json.dumps(llama()), "model.safetensors": "weights"},
        "cpu": {
            "config.json": json.dumps({"max_position_embeddings": 64}),
            "openvino_model.xml": "<net/>",
        },
    }
    for kind, contents in files.items():
        (folder / kind).mkdir(parents=True)
        for name, text in contents.items():
            (folder / kind / name).write_text(text, encoding="utf-8")
    return [folder / kind for kind in files]


def delete_kinds(folder: Path, *deleted: str) -> None:
    """Copy an image's contents into a folder, without some kinds."""
    package = folder / "trtllm_truss"
    for name in (package.name, "trtllm_backends", "trtllm_builder"):
        shutil.copytree(ROOT / "packages" / name, folder / name)
    for name in ("data", "model"):
        shutil.copytree(ROOT / name, folder / name)
    kinds = package / "engines/kinds.py"
    lines = kinds.read_text(encoding="utf-8").splitlines(keepends=True)
    for kind in deleted:
        shutil.rmtree(package / "engines" / kind)
        lines.remove(f'    "{kind}",\n')
    kinds.write_text("".join(lines), encoding="utf-8")


def run(folder: Path, script: str, *arguments: str) -> str:
    """Run a script with the package of a folder; return its output."""
    ended = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "deleted",
    [pytest.param(k, marks=[] if k == "checkpoint" else pytest.mark.thorough) for k in KINDS],
)
def test_a_kind_is_deleted_by_its_folder_and_its_line(deleted: str, tmp_path: Path) -> None:
    """The others are recognized, checked and rendered, and all modules import."""
    delete_kinds(tmp_path, deleted)
    engines = write_engines(tmp_path / "engines")
    rendered = run(tmp_path, WITHOUT, deleted, *map(str, engines)).split()
    assert rendered == [engine.name for engine in engines if engine.name != deleted]


def test_the_cpu_engine_answers_without_the_other_kinds(tmp_path: Path, model_folder: Path) -> None:
    delete_kinds(tmp_path, "compiled", "checkpoint")
    assert run(tmp_path, ANSWER, str(model_folder)).strip()
