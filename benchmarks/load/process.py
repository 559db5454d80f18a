"""Runs load processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.load.spec import LoadResult, LoadSpec
from benchmarks.paths import ROOT


def run_load(spec: LoadSpec) -> LoadResult:
    """Puts one load on a server and returns when it has ended.

    Raises:
        RuntimeError: the load process failed.
    """
    with _started(spec) as process:
        return _result(process)


@contextmanager
def background_load(spec: LoadSpec) -> Iterator[list[LoadResult]]:
    """Puts a load on a server while the block runs.

    Yields:
        A list that holds the result once the block has been left.

    Raises:
        RuntimeError: the load process failed.
    """
    results: list[LoadResult] = []
    with _started(spec) as process:
        yield results
        results.append(_result(process))


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
    """Ends standard input, which ends a load without an end of its own, and waits."""
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a load process ended with status {process.returncode}")
    return LoadResult(**json.loads(output))
