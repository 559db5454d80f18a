"""What Triton loads: the class `TritonPythonModel` of the model `postprocessing`.

The interpreter may be isolated (``sys.flags.isolated``): it then reads no ``PYTHONPATH`` by itself,
in which the server's command names this project's packages. It may be that of TensorRT-LLM, which
has not all packages that the model needs; ``TRTLLM_TRUSS_SITE`` names those of the server.
"""

from __future__ import annotations

import os
import sys

sys.path.extend(os.environ["PYTHONPATH"].split(os.pathsep))
sys.path.extend(filter(None, os.environ.get("TRTLLM_TRUSS_SITE", "").split(os.pathsep)))

from trtllm_backends.triton_native.postprocessing import TritonPythonModel

__all__ = ["TritonPythonModel"]
