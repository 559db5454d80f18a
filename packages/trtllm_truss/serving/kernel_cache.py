"""Keep the kernels that TensorRT-LLM tunes and compiles for a checkpoint for later starts.

The libraries write into a folder of this start (`VARIABLES`), at a path that depends on the key
alone: Triton's compiler and ninja record absolute paths. Once the engine has generated a token, the
folder is packed into one file of a shared place and published by a rename, so that readers see all
of it or nothing::

    /cache/model/trtllm-truss/kernels/<key>.tar     on Baseten, else HF_HOME/trtllm-truss/kernels
    /cache/model/trtllm-truss/kernels/<key>.lock    held (flock) by the server that fills the key

Several servers cannot share a folder directly. TensorRT-LLM up to 1.3.0rc (pull request 14441)
writes the autotuner's file in place, and a reader of half of it ends the start with an error; the
renames of its DeepGEMM into a shared folder fail for all but the first.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO, Any

from trtllm_truss.artifacts.open_repository import shared_folder
from trtllm_truss.processes.child import temporary_folder

logger = logging.getLogger(__name__)

AUTOTUNER = "TLLM_AUTOTUNER_CACHE_PATH"
VARIABLES = {
    # tensorrt_llm/_torch/pyexecutor/model_engine.py, 1.2.0rc2 and later; a file, or with `.rankN`
    # before its end one per rank (tensorrt_llm/_torch/autotuner.py, 1.2.0rc2)
    AUTOTUNER: "autotuner.json",
    "TRTLLM_DG_CACHE_DIR": "trtllm-deep-gemm",  # cpp/tensorrt_llm/deep_gemm/compiler.cuh, 1.x
    "DG_JIT_CACHE_DIR": "deep-gemm",  # csrc/jit/compiler.hpp in deepseek-ai/DeepGEMM
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",  # flashinfer/jit/env.py in flashinfer-ai/flashinfer
    "TRITON_CACHE_DIR": "triton",  # python/triton/runtime/cache.py in triton-lang/triton
    "TORCHINDUCTOR_CACHE_DIR": "inductor",  # torch/_inductor/runtime/cache_dir_utils.py
    "TORCH_EXTENSIONS_DIR": "torch-extensions",  # torch/utils/cpp_extension.py
    # Release notes of NVIDIA/cutlass 4.3.2; assumed: the DSL of TensorRT-LLM's image is as new.
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "CUDA_CACHE_PATH": "cuda",  # CUDA programming guide, 5.2: the driver's compiled PTX
}
_PREBUILT = {"FLASHINFER_WORKSPACE_BASE": ".cache/flashinfer"}
"""Folders of the home that an image may hold filled; the variable would hide them."""

_MAGIC = b"trtllm-truss kernels 1\n"
_LARGEST_BYTES = 4 << 30
_TOTAL_BYTES = 16 << 30
_OLD_S = 30 * 86400.0
_AGAIN_S = 600.0  # kernels that first requests compile
_POLL_S = 0.25
_PATIENCE_S = 5.0  # for a publication when the server stops
_CHUNK_BYTES = 4 << 20
_PASSING = {"tmp", "lock"}
_PASSING_ENDS = (".lock", ".tmp")


def kept_folder() -> Path:
    """Return the folder for what outlives a start: on the platform's volume, or in `HF_HOME`."""
    from huggingface_hub import constants

    return shared_folder() or Path(constants.HF_HOME).absolute() / "trtllm-truss"


def key_of(facts: object) -> str:
    """Return the name of a cache: whatever may change a kernel or a tactic is among the facts."""
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()[:32]


class KernelCache:
    """The kernels of one key, in a folder of this start.

    As a context manager it begins with those of an earlier start, or, if another server is about to
    make them, with that server's.

    Args:
        key: see `key_of`.
        world_size: ranks, each of which the autotuner's file must have.
        variables: the environment of the engine; what it sets already is left alone.
        wait_s: limit of the wait for another server.
        root: the shared folder.

    Attributes:
        waited_s: for another server.
    """

    def __init__(
        self,
        key: str,
        world_size: int,
        variables: Mapping[str, str],
        *,
        wait_s: float,
        root: Path | None = None,
    ) -> None:
        self._key = key
        self._world_size = world_size
        self._parent = variables
        self._wait_s = wait_s
        self._home = Path(variables.get("HOME") or "/")
        self._root = (root or kept_folder()) / "kernels"
        self._archive = self._root / f"{key}.tar"
        self._opened = ExitStack()
        self._lock: IO[bytes] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="kernel-cache", daemon=True)
        self._folder = Path()
        self._restored = False
        self.waited_s = 0.0
        self._published: object = {}

    def __enter__(self) -> KernelCache:
        caches = self._parent.get("XDG_CACHE_HOME") or self._home / ".cache"
        wanted = Path(caches, "trtllm-truss", f"kernels-{self._key}")
        self._claim()
        # The server that fills the archive has the path of later starts: its kernels name it.
        self._folder = self._opened.enter_context(temporary_folder(wanted))
        if self._lock is None and self._is_made() and not self._restore():
            self._claim()
            if self._lock is None:
                self._restore()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE_S)
        self._release()
        self._opened.close()

    @property
    def variables(self) -> dict[str, str]:
        """The variables that name places in the folder."""
        return {
            name: str(self._folder / place)
            for name, place in VARIABLES.items()
            if name not in self._parent
            and not (name in _PREBUILT and (self._home / _PREBUILT[name]).exists())
        }

    def check(self) -> None:
        """Remove an autotuner's file that would end the next start of the engine."""
        for file in self._folder.glob("autotuner*"):
            if file.suffix == ".json" and not _is_sound(file, self._world_size):
                logger.warning("%s is damaged; tuning again", file.name)
                file.unlink(missing_ok=True)

    def distrust(self) -> None:
        """Remove what this start began with: the engine failed with it."""
        if self._restored:
            self._discard("the engine did not start with it")

    def keep(self) -> None:
        """Publish the folder in a thread, now and when it has changed: the engine is ready."""
        self._thread.start()

    def _claim(self) -> None:
        """Without an archive, become the server that fills it, or wait for it."""
        if self._is_made():
            return
        started = time.monotonic()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            lock = (self._root / f"{self._key}.lock").open("ab")
        except OSError as error:
            logger.info("kernels are not kept: %s cannot be written (%s)", self._root, error)
            return
        waits = False
        while not self._is_made():
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waits:
                    logger.info(
                        "another server tunes and compiles for the same engine; waiting for it, up "
                        "to %.0f s",
                        self._wait_s,
                    )
                    waits = True
                self.waited_s = time.monotonic() - started
                if self.waited_s > self._wait_s:
                    break
                time.sleep(_POLL_S)
            except OSError:  # a file system without locks: publishing stays safe
                break
            else:
                if self._is_made():
                    break
                self._lock = lock
                return
        lock.close()

    def _is_made(self) -> bool:
        return os.access(self._archive, os.R_OK)

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _restore(self) -> bool:
        """Unpack the archive; remove it if it is damaged."""
        started = time.monotonic()
        try:
            count, size = _unpack(self._archive, self._folder)
            os.utime(self._archive)  # the time of its last use
        except FileNotFoundError:
            return False
        except (OSError, ValueError, tarfile.TarError) as error:
            self._discard(str(error) or type(error).__name__)
            _empty(self._folder)
            return False
        self.check()
        self._restored = True
        self._published = _fingerprint(self._folder)
        spent_s = time.monotonic() - started
        logger.info(
            "kernels of an earlier start: %d files, %.0f MB (%.1f s)", count, size / 1e6, spent_s
        )
        return True

    def _discard(self, why: str) -> None:
        logger.warning("removing %s: %s", self._archive, why)
        with contextlib.suppress(OSError):
            self._archive.unlink()

    def _keep(self) -> None:
        while True:
            try:
                self._publish()
            except (OSError, ValueError, tarfile.TarError) as error:
                logger.warning("kernels are not kept: %s", error)
            self._release()
            if self._stopping.wait(_AGAIN_S):
                return

    def _publish(self) -> None:
        """Pack the folder if it differs from what was published; an empty one too, for waiters."""
        self.check()
        state = _fingerprint(self._folder)
        if state == self._published and self._archive.exists():
            return
        size = sum(size for size, _ in state.values())
        if size > _LARGEST_BYTES:
            logger.warning("kernels are not kept: they have %.1f GB", size / 1e9)
            return
        self._root.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._root, prefix=f".{self._key}.")
        try:
            with os.fdopen(descriptor, "w+b") as stream:
                _pack(self._folder, state, stream)
            if _fingerprint(self._folder) != state:
                return  # a compiler is at work; the next round takes its result
            Path(name).replace(self._archive)
        finally:
            Path(name).unlink(missing_ok=True)
        self._published = state
        logger.info("kept the kernels of this start: %d files, %.0f MB", len(state), size / 1e6)
        _bound(self._root, self._archive)


def _fingerprint(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file that is worth keeping."""
    found = {}
    for file in folder.rglob("*"):
        name = file.relative_to(folder)
        passing = _PASSING.intersection(name.parts) or name.name.endswith(_PASSING_ENDS)
        if passing or name.name.startswith("owner.lock") or "tmp.pid_" in str(name):
            continue
        with contextlib.suppress(OSError):
            state = file.stat(follow_symlinks=False)
            if file.is_file() and not file.is_symlink():
                found[name.as_posix()] = (state.st_size, state.st_mtime_ns)
    return found


def _pack(folder: Path, names: Mapping[str, object], stream: IO[bytes]) -> None:
    """Write magic, digest and a tar of files."""
    stream.write(_MAGIC + bytes(32))
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(names):
            archive.add(folder / name, name, recursive=False)
    stream.seek(len(_MAGIC) + 32)
    digest = _digest(stream)
    stream.seek(len(_MAGIC))
    stream.write(digest)
    stream.flush()
    os.fsync(stream.fileno())


def _unpack(archive: Path, folder: Path) -> tuple[int, int]:
    """Write the files of an archive; return their number and bytes.

    Raises:
        ValueError: it is not ours, or differs from its digest.
    """
    count = size = 0
    with archive.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it is not an archive of this version")
        digest = stream.read(32)
        if _digest(stream) != digest:
            raise ValueError("it differs from its SHA-256")
        stream.seek(len(_MAGIC) + 32)
        with tarfile.open(fileobj=stream, mode="r:") as packed:
            for member in packed:
                name = PurePosixPath(member.name)
                content = packed.extractfile(member) if member.isreg() else None
                if content is None or name.is_absolute() or ".." in name.parts:
                    raise ValueError(f"it holds {member.name!r}")
                file = folder / name
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as output:
                    shutil.copyfileobj(content, output, _CHUNK_BYTES)
                file.chmod(member.mode & 0o755)
                os.utime(file, (member.mtime, member.mtime))
                count, size = count + 1, size + member.size
    return count, size


def _digest(stream: IO[bytes]) -> bytes:
    digest = hashlib.sha256()
    while chunk := stream.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.digest()


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif not path.name.startswith("owner.lock"):
            path.unlink(missing_ok=True)


def _bound(root: Path, used: Path) -> None:
    """Remove the archives that were not used for longest, and what killed servers left."""
    now, total = time.time(), 0
    found = {file: file.stat() for file in _files(root)}
    for file, state in sorted(found.items(), key=lambda item: -item[1].st_mtime):
        is_archive = file.suffix == ".tar"
        total += state.st_size if is_archive else 0
        is_old = now - state.st_mtime > (_OLD_S if file.suffix in (".tar", ".lock") else 86400)
        if file != used and (is_old or (is_archive and total > _TOTAL_BYTES)):
            file.unlink(missing_ok=True)


def _files(root: Path) -> Iterator[Path]:
    for file in root.iterdir():
        if file.is_file():
            yield file


def _is_sound(file: Path, world_size: int) -> bool:
    """Return whether TensorRT-LLM will load an autotuner's file.

    `AutoTunerProfilingCache.load_cache` raises for a file that is not JSON, lacks its metadata or,
    after pull request 10336, its rank, and for tactics that are no literals of Python.
    """
    try:
        content: dict[str, Any] = json.loads(file.read_bytes())
        metadata = content.pop("metadata")
        if not {"lib_version", "device_name", "device_capability"} <= metadata.keys():
            return False
        own_file = content.pop("cache_data", None)
        ranks = {f"rank_{rank}" for rank in range(world_size)}
        if own_file is None and content.keys() <= ranks and content.keys() != ranks:
            return False
        for entries in (own_file or {}, *content.values()):
            for key, entry in entries.items():
                ast.literal_eval(key)
                tactic = entry["tactic"]
                if isinstance(tactic, str):
                    ast.literal_eval(tactic)
    except (OSError, ValueError, SyntaxError, LookupError, TypeError, AttributeError):
        return False
    except RecursionError:
        return False
    return True
