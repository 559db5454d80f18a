"""Run load processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from benchmarks.load.spec import LoadResult, LoadSpec
from benchmarks.paths import ROOT

_END_LIMIT_S = 10


def run_load(spec: LoadSpec) -> LoadResult:
    """Run one load on a server to its end.

    Raises:
        RuntimeError: the load process failed.
    """
    with _started(spec) as process:
        return _result(process)


@contextmanager
def background_load(spec: LoadSpec) -> Iterator[list[LoadResult]]:
    """Run a load on a server during the block.

    Yields:
        A list that contains the result after the block.

    Raises:
        RuntimeError: the load process failed.
    """
    results: list[LoadResult] = []
    with _started(spec) as process:
        yield results
        results.append(_result(process))


@contextmanager
def stepped_engine(
    module: str, arguments: Sequence[str], tokens: int
) -> Iterator[Callable[[int, int], LoadResult]]:
    """Run an engine alone, in a separate process, during the block.

    Args:
        module: runs as `python -m`, prints `ready`, and answers lines `STREAMS REQUESTS TOKENS`;
            ends with its standard input.
        arguments: arguments of the module.
        tokens: tokens per answer.

    Yields:
        A function of the numbers of streams and requests, which runs them to their end.

    Raises:
        RuntimeError: the engine did not start.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def load(streams: int, requests: int) -> LoadResult:
        stdin.write(f"{streams} {requests} {tokens}\n")
        stdin.flush()
        return LoadResult(**json.loads(stdout.readline()))

    with process:
        try:
            if stdout.readline() != "ready\n":
                raise RuntimeError(f"{module} did not start")
            yield load
        finally:
            stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_LIMIT_S)
            process.kill()


@contextmanager
def _started(spec: LoadSpec) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(spec.to_json() + "\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()


def _result(process: subprocess.Popen[str]) -> LoadResult:
    """Close standard input, which ends an unlimited load, and wait for the result."""
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a load process exited with status {process.returncode}")
    return LoadResult(**json.loads(output))
