"""Modules that Truss imports by their path."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.paths import ROOT


def model_module() -> ModuleType:
    return module_at(ROOT / "model/model.py")


def truss_config() -> Any:
    """Return Truss's own class of config.yaml."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)  # of google-api-core, which Truss imports
        from truss.base.truss_config import TrussConfig
    return TrussConfig


def truss_module(path: str) -> ModuleType:
    """Import a module of the installed Truss without the package, which warns."""
    truss = importlib.util.find_spec("truss")
    assert truss is not None
    assert truss.origin is not None
    return module_at(Path(truss.origin).parent / path)


def module_at(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{path.stem}_py", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
