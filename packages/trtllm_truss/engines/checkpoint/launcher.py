"""TensorRT-LLM's launcher, which runs a checkpoint's ranks on several hosts."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.engines.engine import RankLauncher
from trtllm_truss.errors import TritonError

_NAME = "trtllm-llmapi-launch"


_PID_FILE = "$TMPDIR/mpirun"


_NOTING_ITS_ID = ("/bin/sh", "-c", f'echo $$ >"{_PID_FILE}" && exec "$@"', "sh")


_PROGRAM = "serve"


@dataclass(frozen=True, slots=True)
class LlmApiLauncher(RankLauncher):
    """TensorRT-LLM's launcher.

    It runs the server on rank 0 and workers on the other ranks. It drops the server's exit status
    and keeps running, so a wrapper ends the job when the server exits. Up to 1.2 it splits its
    arguments at blanks (``task_with_command`` of tensorrt_llm/llmapi/trtllm-llmapi-launch), so they
    are written to a file.
    """

    program: Path

    @classmethod
    def find(cls, environ: Mapping[str, str]) -> LlmApiLauncher:
        """Find the program on ``PATH``, or next to Python.

        Raises:
            TritonError: it is not installed.
        """
        beside_python = str(Path(sys.executable).parent)
        for folder in (environ.get("PATH", ""), beside_python):
            if found := shutil.which(_NAME, path=folder):
                return cls(Path(found))
        raise TritonError(
            f"A checkpoint on several hosts needs {_NAME}, which comes with TensorRT-LLM and is "
            "not on PATH; run inside an NVIDIA Triton image that has it."
        )

    def rank(self, segment: Sequence[str], rank: int, folder: Path) -> list[str]:
        if rank > 0:
            return [str(self.program)]
        program = folder / _PROGRAM
        if len(str(program).split()) != 1:
            raise TritonError(
                f"{folder} has blanks in its path, at which TensorRT-LLM's launcher splits it; set "
                "TMPDIR to a folder without blanks."
            )
        lines = (shlex.join(segment), f'kill -TERM "$(cat "{_PID_FILE}")"')
        program.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return [str(self.program), "/bin/sh", str(program)]

    def job(self, command: Sequence[str]) -> list[str]:
        return [*_NOTING_ITS_ID, *command]
