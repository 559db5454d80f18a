"""Measure the speed of a verified download from a server on loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.options import Options
from benchmarks.paths import ROOT
from benchmarks.result import CaseResult, Column
from benchmarks.sample import Sample, in_turns, paired_ratios, spreads
from benchmarks.servers.files import files_server

_MEGABYTES = 2048
_QUICK_MEGABYTES = 4
_OURS = "trtllm-truss"
_LIBRARY = "snapshot_download"
_BLOCK_BYTES = 1 << 20
_COLUMNS = [
    Column("files", "files"),
    Column("side", "side"),
    Column("mb_s", "MB/s"),
    Column("cpu_s_gb", "CPU s/GB", 2),
    Column("rss_mib", "peak RSS MiB"),
]


def run(options: Options) -> CaseResult:
    """Fetch one file, and four files of the same total size, alternating between the sides."""
    megabytes = _QUICK_MEGABYTES if options.quick else options.megabytes or _MEGABYTES
    text = (
        f"A server on loopback sends {megabytes} MiB by `sendfile`, as one file and as four. "
        "`trtllm-truss` verifies the SHA-256 of each file, `huggingface_hub.snapshot_download` and "
        "`curl` verify nothing. The server runs on the same cores. CPU time is the client's, "
        "without its imports; memory is its whole process's."
    )
    result = CaseResult(
        "download", "Verified downloads: one file, and four side by side", text, _COLUMNS
    ).begin()
    served, fetched = options.work / "download/served", options.work / "download/fetched"
    shutil.rmtree(served, ignore_errors=True)
    try:
        for count in (1, 4):
            _write(served / f"files-{count}", count, (megabytes << 20) // count)
        with files_server(served) as url:
            for count in (1, 4):
                _measure(result, options.rounds, url, served / f"files-{count}", fetched)
    finally:
        shutil.rmtree(options.work / "download", ignore_errors=True)
    return result


def _write(folder: Path, count: int, size: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        with (folder / f"rank{number}.engine").open("wb") as stream:
            for _ in range(size // _BLOCK_BYTES):
                stream.write(os.urandom(_BLOCK_BYTES))


def _measure(result: CaseResult, rounds: int, url: str, served: Path, fetched: Path) -> None:
    names = sorted(path.name for path in served.iterdir())
    size = sum((served / name).stat().st_size for name in names)
    repository = f"bench/{served.name}"

    def side(name: str) -> Callable[[], Sample]:
        return lambda: _fetch(
            [sys.executable, "-m", "benchmarks.load.download", name, repository], url, fetched, size
        )

    paths = {_OURS: side(_OURS), _LIBRARY: side(_LIBRARY)}
    if (curl := shutil.which("curl")) is not None:
        outputs = [
            word
            for name in names
            for word in ("-o", str(fetched / name), f"{url}/{repository}/resolve/main/{name}")
        ]
        command = [curl, "--silent", "--fail", "--parallel", *outputs]
        paths["curl"] = lambda: _fetch(command, url, fetched, size)
    samples = in_turns(paths, rounds)
    for name, found in samples.items():
        result.add(files=float(len(names)), side=name, **spreads(found))
    for other in [name for name in paths if name != _OURS]:
        ratio = paired_ratios(samples[_OURS], samples[other])["mb_s"]
        result.find(f"{len(names)} file(s): {ratio.as_ratio} the speed of {other}.")


def _fetch(command: list[str], url: str, fetched: Path, size: int) -> Sample:
    """Run a client that downloads into an empty folder.

    It prints its elapsed and CPU seconds; otherwise its whole lifetime counts.
    """
    shutil.rmtree(fetched, ignore_errors=True)
    fetched.mkdir(parents=True)
    environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(fetched)}
    environment |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1"}
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd=ROOT
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    spent_s, cpu_s = time.perf_counter() - started, usage.ru_utime + usage.ru_stime
    if output:
        spent_s, cpu_s = map(float, output.split())
    if process.returncode != 0:
        raise RuntimeError(f"{command[:4]} ended with status {process.returncode}")
    return {
        "mb_s": size / 1e6 / spent_s,
        "cpu_s_gb": cpu_s / (size / 1e9),
        "rss_mib": usage.ru_maxrss / 1024,
    }
