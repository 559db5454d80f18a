"""Why a command of a build failed, by its last lines and its exit status."""

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
        "A Python package is missing or of another version; install the requirements.txt beside "
        "the script, and use the examples of exactly the installed TensorRT-LLM.",
    ),
    (
        r"unrecognized arguments|the following arguments are required|invalid choice",
        "The script does not know an option; use the examples of exactly the installed "
        "TensorRT-LLM.",
    ),
    (
        r"(datasets|cnn_dailymail|lambada).*(ConnectionError|offline|couldn't|not found|resolve)"
        r"|Couldn't reach .*|DatasetNotFoundError",
        "The data for calibration cannot be fetched; let this machine reach huggingface.co.",
    ),
    (
        r"Unsupported (model )?architecture|is not supported|NotImplementedError",
        "This version of TensorRT-LLM does not build that; choose another quantization or image.",
    ),
    (
        r"no kernel image is available|compute capability|Unsupported SM",
        "TensorRT-LLM has no kernels for this GPU; use a GPU that the version supports.",
    ),
)
_TELLING = re.compile(r"\berror\b|exception|assert|fail(ed|ure)?\b|cannot", re.I)
_KILLED = 128 + signal.SIGKILL


def describe_failure(name: str, status: int, tail: Sequence[str], log: Path) -> str:
    """One or two sentences: what failed, why, what to do, where to read on.

    Args:
        name: of the step.
        status: exit status; above 128 the signal that ended it.
        tail: the last lines of its output, without empty ones.
        log: where all of them are.
    """
    ended = f"the build's step {name} failed with status {status}."
    telling = [line for line in tail if _TELLING.search(line)] or list(tail)
    words = f" It said: {telling[-1][:400]}" if telling else " It said nothing."
    return f"{ended}{words} {_cause(status, tail)}The whole log is in {log}."


def _cause(status: int, tail: Sequence[str]) -> str:
    for pattern, sentence in _CAUSES:
        if any(re.search(pattern, line) for line in reversed(tail)):
            return f"{sentence} "
    if status == _KILLED:
        return "The kernel does that when the machine's memory is used up; use a larger one. "
    return ""
