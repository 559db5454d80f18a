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
            if error.name != "triton_python_backend_utils":  # Triton's alone
                raise
assert not [name for name in sys.modules if name.startswith(f"trtllm_truss.engines.{deleted}")]

from trtllm_truss.engines.compatibility import check_compatibility
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.inspection import inspect_engine
from trtllm_truss.engines.kinds import completed
from trtllm_truss.errors import ArtifactError
from trtllm_truss.serving.rendering import render_engine
from trtllm_truss.settings.loading import parse_settings

for name in folders:
    folder = Path(name)
    settings = parse_settings({"model_metadata": {"engine_repository": name}})
    try:
        engine = completed(inspect_engine(folder), settings, "1.0.0")
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


@pytest.mark.parametrize("deleted", KINDS)
def test_a_kind_is_deleted_by_its_folder_and_its_line(deleted: str, tmp_path: Path) -> None:
    """The others are recognized, checked and rendered, and all modules import."""
    package = tmp_path / "trtllm_truss"
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "packages/trtllm_truss", package, ignore=left_out)
    shutil.copytree(ROOT / "data", tmp_path / "data")
    shutil.rmtree(package / "engines" / deleted)
    kinds = package / "engines/kinds.py"
    lines = kinds.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if line != f'    "{deleted}",\n']
    assert len(kept) == len(lines) - 1
    kinds.write_text("".join(kept), encoding="utf-8")
    engines = write_engines(tmp_path / "engines")
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, deleted, *map(str, engines)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    rendered = ended.stdout.split()
    assert rendered == [engine.name for engine in engines if engine.name != deleted]
