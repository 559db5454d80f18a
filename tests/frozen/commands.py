"""The help of every command."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress

from trtllm_truss.cli.main import main as server_main
from trtllm_workbench.cli.main import main

WIDTH = "100"


def record() -> Mapping[str, str]:
    """Return the help of the workbench's and of the server's commands, one file each."""
    return {
        "help/trtllm-truss.txt": _all(main),
        "help/server.txt": _all(server_main),
    }


def _all(run: Callable[[Sequence[str]], int]) -> str:
    top = _help(run, [])
    commands = re.findall(r"^    ([a-z][a-z-]*)", top, re.MULTILINE)
    parts = [top, *(_help(run, [name]) for name in commands)]
    return "\n".join(parts)


def _help(run: Callable[[Sequence[str]], int], words: Sequence[str]) -> str:
    """Return the help without its usage, whose line breaks depend on Python's version."""
    output = io.StringIO()
    with _wide(), redirect_stdout(output), suppress(SystemExit):
        run([*words, "--help"])
    _, _, rest = output.getvalue().partition("\n\n")
    return f"=== {' '.join(['trtllm-truss', *words])}\n{rest}"


@contextmanager
def _wide() -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
