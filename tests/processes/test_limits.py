"""Limits of a process that its children inherit."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from trtllm_truss.errors import TritonError
from trtllm_truss.processes.limits import is_out_of_files

ABORTS = """
import os, signal, subprocess, sys
from trtllm_truss.processes.limits import limit_core_dumps
limit_core_dumps(allowed={allowed})
os.chdir({folder!r})
subprocess.run([sys.executable, "-c", "import os; os.abort()"], check=False)
os.abort()
"""


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_CORE)[1] == 0
    or not Path("/proc/sys/kernel/core_pattern").read_text().startswith("core"),
    reason="this host writes no core dumps to the folder of a process",
)
def test_neither_a_server_nor_its_child_writes_a_core_dump(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    dumped = {}
    for allowed in (False, True):
        folder = tmp_path / str(allowed)
        folder.mkdir()
        code = ABORTS.format(allowed=allowed, folder=str(folder))
        subprocess.run(
            [sys.executable, "-c", code],
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (hard, hard)),
        )
        dumped[allowed] = [file.name for file in folder.iterdir()]
    assert dumped[False] == []
    assert dumped[True], "this host writes them"


def test_what_was_raised_from_a_lack_of_descriptors() -> None:
    for number, expected in ((errno.EMFILE, True), (errno.ENFILE, True), (errno.ENOENT, False)):
        cause = OSError(number, "")
        assert is_out_of_files(cause) is expected
        error = TritonError("it could not be started")
        error.__cause__ = cause
        assert is_out_of_files(error) is expected
    assert not is_out_of_files(TritonError("another"))
