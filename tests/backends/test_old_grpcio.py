"""Triton's text models with the grpcio of an image."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import grpc
grpc.__version__ = "1.78.0"  # of 26.03
import trtllm_backends.triton_native.calls
"""


def test_text_models_import_with_a_grpcio_older_than_tritonclients_code() -> None:
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
