"""The layout of a container on disk."""

from __future__ import annotations

import py_compile
from pathlib import Path

import pytest

from trtllm_truss.cli.layout import lay_out


@pytest.mark.filterwarnings("ignore")  # of what Truss imports
def test_compiled_modules_come_along_and_are_current(tmp_path: Path) -> None:
    """A start would compile the package again; Python compares the times of sources."""
    truss = tmp_path / "truss"
    for name in ("model/model.py", "packages/ours/__init__.py", "packages/ours/part/a.py"):
        file = truss / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (truss / "config.yaml").write_text("model_name: a\npython_version: py311\n")
    source = truss / "packages/ours/part/a.py"
    compiled = Path(py_compile.compile(str(source)) or "")
    root = tmp_path / "root"
    root.mkdir()
    lay_out(truss, None, root)
    ours = root / "packages/ours"
    copied = ours / compiled.relative_to(truss / "packages/ours")
    assert copied.read_bytes() == compiled.read_bytes()
    assert (ours / "part/a.py").stat().st_mtime == source.stat().st_mtime
    assert not (ours / "__pycache__").exists()
