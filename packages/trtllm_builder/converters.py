"""Packages for TensorRT-LLM's conversion scripts.

In images up to 25.02, a Truss's requirements replace `tokenizers` and `huggingface_hub` with newer
releases, which the image's `transformers` refuses (`dependency_versions_check.py` of 4.38.2 and
4.45.1), and with it `import tensorrt_llm` fails. A build command installs the required versions
into a separate folder.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from trtllm_truss.errors import BuildError

FOLDER = Path("/opt/trtllm-truss-converters")
INSTALL_COMMAND = (
    '/usr/bin/python3 -c "import importlib.metadata as m; '
    "print(*[line for line in m.requires('transformers') "
    "if line.startswith(('tokenizers', 'huggingface')) and 'extra' not in line], sep='\\n')\" "
    f"| /usr/bin/python3 -m pip install --no-deps --target {FOLDER} -r /dev/stdin"
)
"""One of the `build_commands` in config.yaml.

Truss runs them as root, after installing the requirements (`templates/server.Dockerfile.jinja` of
0.18.35; a test builds the context).
"""

_IMPORT_LIMIT_S = 300.0
_IMPORT_ERROR = re.compile(r"(?m)^ImportError: (.+)")


def require_importable(python: str, environment: Mapping[str, str]) -> None:
    """Import `transformers` as a conversion script does. The script itself reports a missing one.

    Raises:
        BuildError: the version of another package prevents it.
    """
    program = [python, "-c", "import transformers"]
    try:
        ended = subprocess.run(
            program,
            cwd=os.sep,  # `-c` imports from the current folder, which may be untrusted
            env=environment,
            capture_output=True,
            timeout=_IMPORT_LIMIT_S,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    found = _IMPORT_ERROR.search(ended.stderr)
    if ended.returncode and found:
        raise BuildError(
            f"the conversion scripts need transformers, which {python} cannot import: "
            f"{found[1][:300]} Add its own versions to build_commands of "
            f"config.yaml, and deploy again: {INSTALL_COMMAND}"
        )
