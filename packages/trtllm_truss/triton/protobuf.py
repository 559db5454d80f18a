"""Triton's protobuf messages, without the client that `tritonclient.grpc` imports with them.

That client imports numpy and grpc, which takes 0.1 s and 25 MB; Truss's process needs neither.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["model_config_pb2", "service_pb2"]

_PACKAGE = "tritonclient.grpc"


def _import(name: str) -> ModuleType:
    """Import a module of the package without running the package's `__init__`."""
    if _PACKAGE in sys.modules:
        return import_module(f"{_PACKAGE}.{name}")
    spec = find_spec(_PACKAGE)
    assert spec is not None, "its parent is there"
    sys.modules[_PACKAGE] = module_from_spec(spec)
    try:
        return import_module(f"{_PACKAGE}.{name}")
    finally:
        del sys.modules[_PACKAGE]


if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2, service_pb2
else:
    model_config_pb2 = _import("model_config_pb2")
    service_pb2 = _import("service_pb2")
