"""Explain a failed build command by its last lines and its exit status."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"CUDA out of memory|OutOfMemoryError|Requested amount of GPU memory|CUDA error: out of",
        "The GPU's memory is too small; use a larger GPU, more tensor_parallelism, or lower "
        "build.max_batch_size, max_num_tokens or calib_batch_size.",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "The disk is full; make room, or point HF_HOME at a larger disk.",
    ),
    (
        r"MemoryError|Cannot allocate memory|std::bad_alloc",
        "The machine's memory is too small; use a larger one, or lower build.workers.",
    ),
    (
        r"No module named '(modelopt|ammo)",
        "Calibration needs nvidia-modelopt; install the version that TensorRT-LLM asks for.",
    ),
    (
        r"No module named|ModuleNotFoundError|cannot import name",
        "A Python package is missing or has another version; install the script's "
        "requirements.txt, and use the examples of exactly the installed TensorRT-LLM.",
    ),
    (
        r"unrecognized arguments|the following arguments are required|invalid choice",
        "The script rejected an option; use the examples of exactly the installed TensorRT-LLM.",
    ),
    (
        r"(datasets|cnn_dailymail|lambada).*(ConnectionError|offline|couldn't|not found|resolve)"
        r"|Couldn't reach .*|DatasetNotFoundError",
        "The calibration data cannot be fetched; give this machine access to huggingface.co.",
    ),
    (
        r"Unsupported (model )?architecture|is not supported|NotImplementedError",
        "This version of TensorRT-LLM cannot build it; choose another quantization or image.",
    ),
    (
        r"no kernel image is available|compute capability|Unsupported SM",
        "TensorRT-LLM has no kernels for this GPU; use a GPU that the version supports.",
    ),
)
_ERROR_LINE = re.compile(r"\berror\b|exception|assert|fail(ed|ure)?\b|cannot", re.I)
_KILLED = 128 + signal.SIGKILL


def describe_failure(name: str, status: int, tail: Sequence[str], log: Path) -> str:
    """Describe a failed step: its last error line, the likely cause, the remedy and the log.

    A `status` above 128 is 128 plus the number of the fatal signal; `tail` has no empty lines.
    """
    errors = [line for line in tail if _ERROR_LINE.search(line)] or list(tail)
    output = f"Its output: {errors[-1][:400]}" if errors else "It printed nothing."
    cause = _cause(status, tail)
    return f"build step {name} failed with status {status}. {output} {cause}The log is {log}."


def _cause(status: int, tail: Sequence[str]) -> str:
    for pattern, sentence in _CAUSES:
        if any(re.search(pattern, line) for line in reversed(tail)):
            return f"{sentence} "
    if status == _KILLED:
        return (
            "The kernel kills a process when the machine runs out of memory; use a larger machine. "
        )
    return ""
