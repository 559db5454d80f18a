"""What Triton loads: the class `TritonPythonModel`, found without any help of the environment.

Triton runs this file as the top-level module `model` in an interpreter that may be isolated
(``sys.flags.isolated``): it then reads no ``PYTHONPATH``, and relative imports fail in any case.
This file's folder may be a link, so its real place says where our own package is.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from trtllm_truss.backends.openvino_genai.triton_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
