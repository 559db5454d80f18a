"""A fake of TensorRT-LLM's LLM API, without a GPU.

It behaves as 1.2.1, or as the late 1.3 pre-releases, awkward parts included. `TLLM_FAKE_VERSION`
selects the version. What it accepts and refuses is listed in `fake.versions`. The engine runs in
worker processes that real MPI spawns; `fake.compute` describes what generates there.
"""

import os
import sys

from tensorrt_llm.fake.versions import IS_1_3, VERSION

__version__ = VERSION

if IS_1_3 and not any(
    os.environ.get(name) in ("1", "true")
    for name in ("TRTLLM_NO_USAGE_STATS", "TELEMETRY_DISABLED", "DO_NOT_TRACK")
):
    sys.stderr.write("[fake] usage statistics are reported\n")

from tensorrt_llm.fake.llm import LLM
from tensorrt_llm.fake.sampling import SamplingParams

__all__ = ["LLM", "SamplingParams", "__version__"]
