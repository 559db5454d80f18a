"""The engine and tokenizer repositories: select the needed files, download and read them ahead.

An engine's files are compared with its manifest. A platform's own delivery is trusted for the
start, so that no byte is read twice before readiness: its mounted files are compared with their
recorded hashes afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import mmap
import os
import platform
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from trtllm_truss.artifacts.listing import Listing, Source, has_sha256, named, select_tokenizer
from trtllm_truss.engines.diagnostics import Diagnostic, shortlist, warning
from trtllm_truss.engines.engine import Engine, Placement
from trtllm_truss.engines.engine_files import CONFIG_FILE
from trtllm_truss.engines.kinds import find_engine, inspect_files
from trtllm_truss.engines.manifest import MANIFEST_FILE, Manifest
from trtllm_truss.errors import ArtifactError
from trtllm_truss.machine.describe import read_limits

logger = logging.getLogger(__name__)


def needed_files(
    sizes: Mapping[str, int],
    engine: Engine,
    *,
    with_code: bool = False,
    ranks: Collection[int] | None = None,
) -> list[str]:
    """List the files that serving needs, by path below the repository.

    Args:
        sizes: bytes of every file by its path below the repository.
        with_code: include the Python files of a checkpoint (`trust_remote_code`).
        ranks: those of this host; None for all.
    """
    here, placement = engine.placement.sizes(sizes), engine.placement
    names = engine.needed_files(here, with_code=with_code, ranks=ranks)
    wanted = (names | {CONFIG_FILE, MANIFEST_FILE}) & here.keys()
    return [*placement.paths(sorted(wanted)), *placement.marks]


def check_listing(engine: Engine, listing: Listing, *, is_part: bool = False) -> None:
    """Compare a manifest with the engine's `config.json` and the listing.

    Args:
        listing: the files of its repository.
        is_part: only the files that serving needs are there.

    Raises:
        ArtifactError: the manifest belongs to another build.
    """
    manifest = engine.manifest
    if manifest is None:
        return
    engine.check_manifest(manifest)
    listed = {file.path: file for file in listing.files}
    recorded = _recorded(manifest, engine.placement)
    sizes = {**{path: size for path, (size, _) in recorded.items()}, **listing.sizes}
    needed = needed_files(sizes, engine) if is_part else recorded
    wrong = []
    for path, record in recorded.items():
        file = listed.get(path)
        if file is None:
            if path not in needed:
                continue
            raise ArtifactError(
                f"{MANIFEST_FILE} names {path}, which is missing; upload every file of the build."
            )
        digest = file.digest
        other = digest is not None and digest.algorithm == "sha256" and digest.value != record[1]
        if file.size != record[0] or other:
            wrong.append(path)
    _refuse(wrong)


def check_tokenizer(engine: Engine, repository: str, commit: str) -> Iterator[Diagnostic]:
    """Yield a warning if the manifest names another commit of the same tokenizer.

    Args:
        commit: the commit in use; empty if unknown.
    """
    recorded = None if engine.manifest is None else engine.manifest.tokenizer
    if recorded is None or recorded.repository != repository:
        return
    if commit and recorded.revision not in (None, commit):
        yield warning(
            "tokenizer_revision_differs",
            f"the engine was built for {repository} at {recorded.revision}, but its tokenizer "
            f"is fetched at {commit}; set tokenizer_revision to the former if they differ.",
        )


def check_files(engine: Engine, repository: Path) -> None:
    """Compare files on this machine with the manifest.

    A file is read again only after its size or time has changed.

    Raises:
        ArtifactError: a file differs from the manifest.
    """
    recorded = recorded_files(engine, repository)
    with ThreadPoolExecutor(8) as threads:
        fits = threads.map(has_sha256, recorded, recorded.values())
        _refuse(
            [
                path.relative_to(repository).as_posix()
                for path, fit in zip(recorded, fits, strict=True)
                if not fit
            ]
        )


def recorded_files(engine: Engine, repository: Path) -> dict[Path, str]:
    """Return the SHA-256 of the files here that the manifest names."""
    if engine.manifest is None:
        return {}
    recorded = _recorded(engine.manifest, engine.placement)
    places = {repository / path: sha256 for path, (_, sha256) in recorded.items()}
    return {place: sha256 for place, sha256 in places.items() if place.is_file()}


def _recorded(manifest: Manifest, placement: Placement) -> dict[str, tuple[int, str]]:
    return {
        path: (record.size, record.sha256)
        for path, record in zip(
            placement.paths(manifest.files), manifest.files.values(), strict=True
        )
    }


def _refuse(wrong: list[str]) -> None:
    if wrong:
        raise ArtifactError(
            f"{shortlist(wrong)} in the engine repository differs from {MANIFEST_FILE}; "
            "upload all files of one build."
        )


class EngineRepository:
    """A repository with an engine, listed on construction.

    Raises:
        ArtifactError: from every method, with the repository's name.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._sizes = source.listing().sizes
        with named(source.name):
            _, self._placement = find_engine(self._sizes)

    def describe(self) -> Engine:
        """Read small files only; a GGUF file has none, and stays undescribed."""
        with named(self.source.name):
            engine = inspect_files(self._sizes, self.source.read)
            check_listing(engine, self.source.listing(), is_part=self.source.is_mounted)
        return engine

    def engine_paths(
        self,
        engine: Engine,
        *,
        with_code: bool = False,
        ranks: Collection[int] | None = None,
    ) -> list[str]:
        """Return the files to serve, given the result of `describe`.

        Args:
            with_code: include the Python files of a checkpoint (`trust_remote_code`).
            ranks: those of this host; None for all.
        """
        return needed_files(self._sizes, engine, with_code=with_code, ranks=ranks)

    def tokenizer_paths(self, *, trust_remote_code: bool) -> list[str]:
        """Return the tokenizer's files in this repository."""
        sizes = self._placement.tokenizer_sizes(self._sizes)
        with named(self.source.name):
            names = select_tokenizer(sizes, trust_remote_code=trust_remote_code)
        return self._placement.tokenizer_paths(names)


class TokenizerRepository:
    """A repository with a tokenizer; construction sends no request.

    Args:
        trust_remote_code: accept tokenizers that contain Python code.

    Raises:
        ArtifactError: from every method, with the repository's name.
    """

    def __init__(self, source: Source, name: str, *, trust_remote_code: bool) -> None:
        self.source = source
        self._repository = name
        self._trust_remote_code = trust_remote_code

    def examine(self, engine: Engine) -> list[Diagnostic]:
        """Check access, files and disk space before the engine is downloaded."""
        self.source.check_room(self.paths())
        return list(check_tokenizer(engine, self._repository, self.source.listing().commit))

    def fetch(self) -> Path:
        """Download the tokenizer and return its folder."""
        return self.source.fetch(self.paths())

    def paths(self) -> list[str]:
        """Return the tokenizer's files."""
        sizes = self.source.listing().sizes
        with named(self.source.name):
            return select_tokenizer(sizes, trust_remote_code=self._trust_remote_code)


_CHUNK_BYTES = 4 << 20
_BYTES_PER_S = 100e6  # of 70 GB: 12 minutes, and a fifth of one core
_LOWEST_PRIORITY = 19
_PATIENCE_S = 5.0  # for a read from a mount that hangs
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_CLASS_IDLE = 3 << 13


class MountedFiles:
    """Reads each file once, in one thread of the lowest priority, at a bounded rate.

    Args:
        hashes: SHA-256 by file.
        on_difference: called once, from the thread, after the first file that differs.
        rest: waits for seconds, or until the check is stopped; returns whether it is.

    Attributes:
        unchecked_bytes: what is still to be read.
        differing: files that differ from their hash or cannot be read.
    """

    def __init__(
        self,
        hashes: Mapping[Path, str],
        on_difference: Callable[[], object] = lambda: None,
        rest: Callable[[float], bool] | None = None,
    ) -> None:
        self._hashes = dict(hashes)
        self._on_difference = on_difference
        self._stopping = threading.Event()
        self._rest = rest or self._stopping.wait
        self.unchecked_bytes = sum(_size(file) for file in self._hashes)
        self.differing: tuple[Path, ...] = ()
        self._thread = threading.Thread(target=self._run, name="mounted-files", daemon=True)

    @contextlib.contextmanager
    def checking(self) -> Iterator[MountedFiles]:
        """Check the files inside this context; its end stops the check."""
        if self._hashes:
            self._thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            self.wait(_PATIENCE_S)

    def wait(self, limit_s: float | None = None) -> None:
        """Wait for the end of the check."""
        if self._thread.is_alive():
            self._thread.join(limit_s)

    def _run(self) -> None:
        _lower_priority()
        for file, expected in self._hashes.items():
            found = self._sha256(file)
            if self._stopping.is_set():
                return
            if found != expected:
                self._report(file, found)
        if not self.differing:
            logger.info("%d mounted files are as %s says", len(self._hashes), MANIFEST_FILE)

    def _sha256(self, file: Path) -> str:
        digest = hashlib.sha256()
        try:
            with file.open("rb", buffering=0) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    self.unchecked_bytes = max(0, self.unchecked_bytes - len(chunk))
                    if self._rest(len(chunk) / _BYTES_PER_S):
                        break
        except OSError as error:
            return f"unreadable ({error.strerror})"
        return digest.hexdigest()

    def _report(self, file: Path, found: str) -> None:
        self.differing = (*self.differing, file)  # before the line that tells of it
        logger.error(
            "%s differs from %s: its SHA-256 is %s, not %s; this server is unhealthy from now on. "
            "Upload the build again and push, so that the platform delivers it anew.",
            *(file, MANIFEST_FILE, found, self._hashes[file]),
        )
        if len(self.differing) == 1:
            self._on_difference()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _lower_priority() -> None:
    """Let this thread run, and read, when nothing else wants to; the kernel may refuse."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, _LOWEST_PRIORITY)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, thread, _IOPRIO_CLASS_IDLE)


_THREADS = 8
_BLOCK_BYTES = 8 << 20
_SHARE_OF_FREE = 0.75
"""The rest is for the processes of the start; the kernel would evict these pages for them."""
_LEAST_LOGGED_BYTES = 50_000_000
_NULL = "/dev/null"
_Block = tuple[int, int, int]


def free_memory() -> int | None:
    return read_limits().memory_free_bytes


class ReadAhead:
    """Reads files into the page cache from their beginnings, side by side, as each rank its own.

    Triton and its backend take seconds, with TensorRT-LLM's imports half a minute, before they open
    the first file; then one thread per rank reads it. Here several threads begin as soon as the
    folder is known. They `sendfile` to ``/dev/null``, which fills the page cache and copies
    nothing: of 4 GB a tenth of the CPU time of `pread`. ``POSIX_FADV_WILLNEED`` left a fifth of the
    pages out.

    Args:
        free_bytes: returns the memory that files may take, None if unknown.

    Attributes:
        done_bytes: what was read.
    """

    def __init__(self, free_bytes: Callable[[], int | None] = free_memory) -> None:
        self._free_bytes = free_bytes
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.done_bytes = 0

    def begin(self, files: Collection[Path]) -> None:
        """Start to read, up to a share of the free memory; return at once."""
        opened, sizes = ExitStack(), {}
        for file in files:
            with contextlib.suppress(OSError):  # reported by whoever needs it
                descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, descriptor)
                sizes[descriptor] = os.fstat(descriptor).st_size
        wanted, free = sum(sizes.values()), self._free_bytes()
        limit = wanted if free is None else min(wanted, int(free * _SHARE_OF_FREE))
        blocks = _blocks(sizes, limit)
        thread = threading.Thread(
            target=self._run, args=(opened, blocks, wanted), name="read-ahead", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Stop; a thread that waits for the disk ends with its block."""
        self._stopping.set()

    def wait(self) -> None:
        """Wait for the last block."""
        for thread in self._threads:
            thread.join()

    def _run(self, opened: ExitStack, blocks: Sequence[_Block], wanted: int) -> None:
        started = time.monotonic()
        with opened:
            null = os.open(_NULL, os.O_WRONLY | os.O_CLOEXEC)
            opened.callback(os.close, null)
            rest = iter(blocks)
            helpers = [
                threading.Thread(target=self._read, args=(null, rest), daemon=True)
                for _ in range(min(_THREADS, len(blocks)))
            ]
            for helper in helpers:
                helper.start()
            for helper in helpers:
                helper.join()
        if wanted >= _LEAST_LOGGED_BYTES:
            of = f" of {wanted / 1e9:.1f}" if self.done_bytes < wanted else ""
            why = "" if not of else "; more does not fit into memory"
            why = "; the engine is ready" if self._stopping.is_set() else why
            spent_s = time.monotonic() - started
            logger.info("read ahead %.1f%s GB in %.1f s%s", self.done_bytes / 1e9, of, spent_s, why)

    def _read(self, null: int, rest: Iterator[_Block]) -> None:
        while not self._stopping.is_set():
            with self._lock:
                block = next(rest, None)
            if block is None:
                return
            with contextlib.suppress(OSError):  # met again by the engine, which reports it
                done = _read_block(null, *block)
                with self._lock:
                    self.done_bytes += done


def _blocks(sizes: Mapping[int, int], limit: int) -> list[_Block]:
    """Return descriptor, offset and length of blocks, the first ones of all files first."""
    blocks = []
    for start in range(0, max(sizes.values(), default=0), _BLOCK_BYTES):
        for descriptor, size in sizes.items():
            count = min(_BLOCK_BYTES, size - start, limit)
            if count > 0:
                limit -= count
                blocks.append((descriptor, start, count))
    return blocks


def _read_block(null: int, descriptor: int, start: int, count: int) -> int:
    """Read a block by `sendfile`; by `pread` where the file system cannot."""
    done = 0
    try:
        while done < count and (sent := os.sendfile(null, descriptor, start + done, count - done)):
            done += sent
    except OSError:
        with mmap.mmap(-1, count) as buffer:
            done = os.preadv(descriptor, [buffer], start)
    return done
