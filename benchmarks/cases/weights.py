"""Measure a start with real reads of weights: from a cold disk, a warm cache and a mount."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.cases.setup import set_up
from benchmarks.options import Options
from benchmarks.paths import ROOT
from benchmarks.result import CaseResult, Column
from benchmarks.sample import Sample, in_turns, paired_ratios, spreads
from benchmarks.servers.files import COMMIT, files_server

_MEGABYTES = 4096
_QUICK_MEGABYTES = 4
_BLOCK_BYTES = 1 << 20
_IMPORTS_S = 3
_WITH, _WITHOUT = "read ahead", "without"
_CACHE, _MOUNT = "Hugging Face cache, warm", "mount"
_PAGE_BYTES = mmap.PAGESIZE
_COLUMNS = [
    Column("files", "files"),
    Column("side", "side"),
    Column("ready_s", "ready after s", 2),
    Column("cpu_s", "CPU s of our process", 2),
    Column("fetched_mb", "MB fetched"),
]


def run(options: Options) -> CaseResult:
    """Start engines whose files were evicted from the page cache, and others from a mount."""
    megabytes = _QUICK_MEGABYTES if options.quick else options.megabytes or _MEGABYTES
    text = (
        f"The start of the service in one process, without imports, with an engine of {megabytes} "
        "MiB that Triton's backend reads in one thread. “Cold”: before each start its pages are "
        "evicted (`POSIX_FADV_DONTNEED`), which `mincore` confirms. “Imports”: the backend "
        f"waits {_IMPORTS_S} s before it opens the file; TensorRT-LLM's take longer. The warm "
        "cache of Hugging Face and the mount hold a quarter as much, in the page cache; a Hub on "
        "loopback would serve what is missing."
    )
    result = CaseResult(
        "weights", "Start: weights from a cold disk, and from a mount", text, _COLUMNS
    )
    result.begin()
    for name, load_s in (("cold", 0), ("cold, imports", _IMPORTS_S)):
        with _engine(options, megabytes, load_s) as (config, file):
            samples = in_turns(
                {
                    _WITH: partial(_cold, config, file),
                    _WITHOUT: partial(_cold, config, file, "--without-read-ahead"),
                },
                options.rounds,
            )
        for side, found in samples.items():
            result.add(files=name, side=side, fetched_mb=0.0, **spreads(found))
        ratio = paired_ratios(samples[_WITH], samples[_WITHOUT])["ready_s"]
        result.find(f"{name}: with read ahead {ratio.as_ratio} the time of a start without it.")
    _compare_mount(result, options, max(1, megabytes // 4))
    return result


@contextmanager
def _engine(options: Options, megabytes: int, load_s: float) -> Iterator[tuple[Path, Path]]:
    """Yield the configuration and the file of an engine with weights; remove it afterwards."""
    bench = set_up(options, "weights", engine={"load_s": load_s})
    file = options.work / "weights-engine/rank0.engine"
    try:
        with file.open("ab") as stream:
            stream.write(b"WEIGHTS\n")
            for _ in range(megabytes):
                stream.write(os.urandom(_BLOCK_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
        os.environ["TRITON_BACKEND_DIRECTORY"] = str(bench.backend.folder)
        yield bench.config, file
    finally:
        os.environ.pop("TRITON_BACKEND_DIRECTORY", None)
        file.unlink(missing_ok=True)


def _cold(config: Path, file: Path, *arguments: str) -> Sample:
    with file.open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = resident_bytes(file) / file.stat().st_size
    if share > 0.01:
        raise RuntimeError(f"{share:.0%} of {file} stay in the page cache")
    return _start(config, *arguments)


def _start(config: Path, *arguments: str, **variables: str) -> Sample:
    command = [sys.executable, "-m", "benchmarks.load.start", str(config), *arguments]
    environment = {**os.environ, **variables}
    run = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    if run.returncode:
        raise RuntimeError(f"the start failed: {run.stderr[-2000:]}")
    ready_s, cpu_s = map(float, run.stdout.split())
    return {"ready_s": ready_s, "cpu_s": cpu_s}


def _compare_mount(result: CaseResult, options: Options, megabytes: int) -> None:
    """Serve one repository from the cache and from a folder that the platform has filled."""
    work = options.work / "weights"
    shutil.rmtree(work, ignore_errors=True)
    try:
        with _engine(options, megabytes, 0) as (config, file):
            shutil.copytree(file.parent, work / "served/engine")
            shutil.copytree(file.parent, work / "mount")
            base = yaml.safe_load(config.read_text())
            with files_server(work / "served") as url:
                paths = {
                    _CACHE: _of_repository(work, base, url, work / "absent"),
                    _MOUNT: _of_repository(work, base, url, work / "mount"),
                }
                paths[_CACHE]()  # downloads
                samples = in_turns(paths, options.rounds)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for side, found in samples.items():
        result.add(files="page cache", side=side, **spreads(found))
    ratio = paired_ratios(samples[_MOUNT], samples[_CACHE])["ready_s"]
    result.find(f"A mount takes {ratio.as_ratio} the time of a start from the warm cache.")


def _of_repository(work: Path, base: dict[str, Any], url: str, mount: Path) -> Callable[[], Sample]:
    metadata = {**base["model_metadata"], "engine_repository": "bench/engine"}
    weights = [{"source": f"hf://bench/engine@{COMMIT}", "mount_location": str(mount)}]
    metadata["engine_revision"] = COMMIT
    config = work / f"{mount.name}.yaml"
    config.write_text(yaml.safe_dump({**base, "weights": weights, "model_metadata": metadata}))
    cache = work / "cache"

    def start() -> Sample:
        before = _size(cache)
        sample = _start(config, HF_ENDPOINT=url, HF_HOME=str(cache), HF_HUB_DISABLE_XET="1")
        return {**sample, "fetched_mb": (_size(cache) - before) / 1e6}

    return start


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("blobs/*"))


def resident_bytes(file: Path) -> int:
    """Return how much of a file is in the page cache."""
    pages = -(-file.stat().st_size // _PAGE_BYTES)
    vector = ctypes.create_string_buffer(pages)
    libc = ctypes.CDLL(None, use_errno=True)
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
        view = (ctypes.c_char * len(mapped)).from_buffer(mapped)
        problem = libc.mincore(ctypes.byref(view), ctypes.c_size_t(len(mapped)), vector)
        del view
    if problem:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return sum(byte & 1 for byte in vector.raw) * _PAGE_BYTES
