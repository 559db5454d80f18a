"""The backend `llm_api` with the fake library: the stub's interpreter ignores PYTHONPATH."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "site"))

from trtllm_backends.llm_api.triton_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
