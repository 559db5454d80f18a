"""Entry module of the backend: the class `TritonPythonModel`.

Triton runs this file as the top-level module `model` in an interpreter that may be isolated
(``sys.flags.isolated``): it then ignores ``PYTHONPATH``, and relative imports always fail. The
folder may be a link, so the package is located from the file's real path.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from trtllm_backends.openvino_genai.triton_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
