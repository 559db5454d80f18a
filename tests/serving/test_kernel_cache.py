"""Kernels and tactics outlive a start: published whole, made once, harmless when damaged."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import settles

from trtllm_truss.artifacts.listing import Listing
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.serving import kernel_cache
from trtllm_truss.serving.kernel_cache import AUTOTUNER, VARIABLES, KernelCache, key_of
from trtllm_truss.serving.preparation import PreparedEngine
from trtllm_truss.settings.loading import Environment, parse_settings

META = {"lib_version": "1.2.1", "device_name": "H100", "device_capability": [9, 0]}
SOUND = {"metadata": META, "rank_0": {"('op',)": {"tactic": "(1, 2)"}}, "rank_1": {}}
KEY = key_of(["an engine"])


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Private folders lie here, or in `.cache` of the home, and none is left."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())
    assert not list(tmp_path.glob(".cache/trtllm-truss/*"))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., KernelCache]]:
    with ExitStack() as stack:

        def enter(key: str = KEY, wait_s: float = 60, **variables: str) -> KernelCache:
            environment = {"HOME": str(tmp_path), **variables}
            cache = KernelCache(key, 2, environment, wait_s=wait_s, root=tmp_path / "kept")
            cache.__enter__()
            stack.push(cache)
            return cache

        yield enter


@contextmanager
def ended(cache: KernelCache) -> Iterator[KernelCache]:
    """End a cache with the block, as its server does."""
    yield cache
    cache.__exit__(None, None, None)


def fill(cache: KernelCache, tuned: Any = SOUND) -> None:
    """Write as the libraries do."""
    places = cache.variables
    Path(places[AUTOTUNER]).write_text(tuned if isinstance(tuned, str) else json.dumps(tuned))
    kernel = Path(places["TRITON_CACHE_DIR"], "KEY", "kernel.cubin")
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"cubin")
    os.utime(kernel, (1000, 1000))
    passing = kernel.with_name("lock")
    passing.touch()


def published(cache: KernelCache) -> None:
    """Publish, as `keep` does first, in this thread."""
    cache._publish()
    cache._release()


def archive(tmp_path: Path) -> Path:
    return tmp_path / f"kept/kernels/{KEY}.tar"


def test_a_later_start_has_the_files_at_the_same_paths(
    tmp_path: Path, opened: Callable[..., KernelCache]
) -> None:
    with ended(opened()) as first:
        fill(first)
        places = first.variables
        published(first)
    with ended(opened()) as second:
        assert second.variables == places
        kernel = Path(places["TRITON_CACHE_DIR"], "KEY", "kernel.cubin")
        assert kernel.read_bytes() == b"cubin"
        assert kernel.stat().st_mtime == 1000  # ninja compares
        assert json.loads(Path(places[AUTOTUNER]).read_text()) == SOUND
        assert [path.name for path in kernel.parent.iterdir()] == ["kernel.cubin"]
        assert list(opened(key_of("another engine"))._folder.glob("*/")) == []


def key_with(commit: str = "c" * 40, **metadata: Any) -> str:
    settings = parse_settings({"model_metadata": {"engine_repository": "org/model", **metadata}})
    host = HostInfo(image="image:1")
    resolved: Any = SimpleNamespace(listing=Listing(commit, ()))
    machine: Any = None
    return PreparedEngine(settings, Environment(None, {}), machine, host, resolved, "1.2.1").kernels


def test_what_may_change_a_kernel_changes_the_key() -> None:
    assert key_with() == key_with(serving={"queue_limit": 7})
    keys = [
        key_with(),
        key_with("d" * 40),
        key_with(tensor_parallelism=2),
        key_with(runtime={"llm_args": {"attn_backend": "FLASHINFER"}}),
        key_with(trust_remote_code=True),  # its code may have compiled them
    ]
    assert len({*keys}) == len(keys)


def test_what_a_killed_server_left_is_removed(
    tmp_path: Path, opened: Callable[..., KernelCache]
) -> None:
    place = tmp_path / f".cache/trtllm-truss/kernels-{KEY}"
    other = place.with_name("kernels-other")
    for folder in (place, other):
        folder.mkdir(parents=True)
        (folder / "owner.lock").touch()
        (folder / "half.json").touch()
    cache = opened()
    assert cache._folder == place
    assert not (place / "half.json").exists()
    assert not other.exists()
    opened(key_of("another engine"))
    assert place.is_dir()  # in use


def test_variables_of_the_operator_and_prebuilt_kernels_win(
    tmp_path: Path, opened: Callable[..., KernelCache]
) -> None:
    (tmp_path / ".cache/flashinfer").mkdir(parents=True)
    places = opened(TRITON_CACHE_DIR="/theirs", CUDA_CACHE_PATH="").variables
    without = {"TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "FLASHINFER_WORKSPACE_BASE"}
    assert places.keys() == VARIABLES.keys() - without


def test_one_server_fills_a_key_while_others_wait(
    opened: Callable[..., KernelCache], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = opened()
    waiting: list[KernelCache] = []
    threads = [threading.Thread(target=lambda: waiting.append(opened())) for _ in range(3)]
    for thread in threads:
        thread.start()
    fill(first)
    assert settles(lambda: caplog.text.count("waiting for it") == len(threads))
    assert not waiting
    published(first)
    for thread in threads:
        thread.join()
    assert first.waited_s == 0
    for cache in waiting:
        assert cache._restored
        assert cache.waited_s > 0
        assert Path(cache.variables[AUTOTUNER]).exists()
    assert len({cache._folder for cache in [first, *waiting]}) == 4


def test_the_server_that_fills_a_key_has_the_path_of_later_starts(
    tmp_path: Path, opened: Callable[..., KernelCache]
) -> None:
    """One that waits leaves the path alone: it may have come first, and lost the lock."""
    kept = tmp_path / "kept/kernels"
    kept.mkdir(parents=True)
    with (kept / f"{KEY}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting: list[KernelCache] = []
        thread = threading.Thread(target=lambda: waiting.append(opened()))
        thread.start()
        assert settles(lambda: len(open_files(kept)) == 2)
        assert not (tmp_path / f".cache/trtllm-truss/kernels-{KEY}").exists()
    thread.join()
    (filling,) = waiting
    assert filling._lock is not None
    assert filling._folder.parent == tmp_path / ".cache/trtllm-truss"


def open_files(folder: Path) -> list[str]:
    """Return this process's open files in a folder."""
    links = (each.readlink() for each in Path("/proc/self/fd").iterdir() if each.exists())
    return [str(link) for link in links if link.parent == folder]


def test_the_end_of_a_server_that_published_nothing_lets_the_next_one_go(
    opened: Callable[..., KernelCache],
) -> None:
    with ended(opened()):
        pass
    second = opened(wait_s=0)
    assert second._lock is not None
    third = opened(wait_s=0)  # has waited long enough
    assert third._lock is None
    assert not third._restored


def test_without_locks_every_server_fills_its_own_copy(
    opened: Callable[..., KernelCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(kernel_cache.fcntl, "flock", refuse)
    monkeypatch.setattr("trtllm_truss.processes.child.fcntl.flock", refuse)
    first, second = opened(), opened()
    fill(first)
    published(first)
    fill(second)
    published(second)
    assert opened()._restored


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-700])


def change_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "cut": cut,
    "changed": change_a_byte,
    "empty": lambda file: file.write_bytes(b""),
    "foreign": lambda file: file.write_bytes(os.urandom(10_000)),
    "other": lambda file: file.write_text("trtllm-truss kernels 0\n" + "x" * 5000),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_archive_is_removed_and_made_again(
    tmp_path: Path, opened: Callable[..., KernelCache], damage: str
) -> None:
    with ended(opened()) as first:
        fill(first)
        published(first)
    DAMAGE[damage](archive(tmp_path))
    second = opened()
    assert not second._restored
    assert not archive(tmp_path).exists()
    fill(second)
    published(second)
    assert opened()._restored


def test_an_archive_that_leads_elsewhere_is_refused(
    tmp_path: Path, opened: Callable[..., KernelCache]
) -> None:
    (tmp_path / "evil").write_text("evil")
    place = archive(tmp_path)
    place.parent.mkdir(parents=True)
    with place.open("w+b") as stream:
        kernel_cache._pack(tmp_path / "kept", {"../evil": ()}, stream)
    cache = opened()
    assert not cache._restored
    assert not (cache._folder.parent / "evil").exists()


BROKEN = [
    json.dumps(SOUND)[:-9],
    "",
    "[]",
    {"rank_0": {}, "rank_1": {}},
    {"metadata": META, "rank_0": {}},  # a server died before its second rank wrote
    {"metadata": META, "rank_0": {}, "rank_1": {"('op',)": {"tactic": "<object>"}}},
    {"metadata": META, "rank_0": {}, "rank_1": {"op()": {"tactic": "1"}}},
]


@pytest.mark.parametrize("tuned", BROKEN)
def test_an_autotuners_file_that_would_end_the_start_is_neither_kept_nor_used(
    opened: Callable[..., KernelCache], tuned: Any
) -> None:
    with ended(opened()) as first:
        fill(first, tuned)
        published(first)
    second = opened()
    assert second._restored
    assert not Path(second.variables[AUTOTUNER]).exists()


def test_files_of_other_releases_are_kept(opened: Callable[..., KernelCache]) -> None:
    """1.2.0rc2 has a file per rank; after pull request 14441 there are entries of all ranks."""
    cache = opened()
    fill(cache, {"metadata": META, "shared": {"('op',)": {"tactic": "1"}}})
    own = Path(cache.variables[AUTOTUNER]).with_suffix(".rank1.json")
    own.write_text(json.dumps({"metadata": META, "cache_data": {"('op',)": {"tactic": 3}}}))
    cache.check()
    assert own.exists()
    assert Path(cache.variables[AUTOTUNER]).exists()


def test_kernels_with_which_the_engine_fails_are_removed(
    tmp_path: Path, opened: Callable[..., KernelCache]
) -> None:
    with ended(opened()) as first:
        fill(first)
        first.distrust()  # made here: not published yet, and not to blame
        published(first)
    assert archive(tmp_path).exists()
    opened().distrust()
    assert not archive(tmp_path).exists()


def test_the_folder_is_bounded_by_last_use(
    tmp_path: Path, opened: Callable[..., KernelCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [key_of(number) for number in range(4)]
    for age, name in enumerate(names):
        with ended(opened(name)) as cache:
            fill(cache)
            published(cache)
        os.utime(tmp_path / f"kept/kernels/{name}.tar", (1e9 + age, 4e9 + age))
    with ended(opened(names[0])):
        pass  # the first is the last used
    size = (tmp_path / f"kept/kernels/{names[0]}.tar").stat().st_size
    for name in names[1:]:
        os.utime(tmp_path / f"kept/kernels/{name}.tar")
    monkeypatch.setattr(kernel_cache, "_TOTAL_BYTES", 3 * size)
    old = tmp_path / f"kept/kernels/{names[1]}.tar"
    os.utime(old, (old.stat().st_atime, old.stat().st_mtime - 100))
    with ended(opened()) as cache:
        fill(cache)
        published(cache)
    left = {file.stem for file in (tmp_path / "kept/kernels").glob("*.tar")}
    assert KEY in left
    assert names[1] not in left
    assert len(left) == 3


def test_a_folder_that_cannot_be_written_costs_nothing(
    tmp_path: Path, opened: Callable[..., KernelCache], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kept").write_text("a file")
    cache = opened()
    fill(cache)
    cache.keep()
    assert settles(lambda: "kernels are not kept: [Errno 20]" in caplog.text)
    assert (tmp_path / "kept").read_text() == "a file"


def test_an_empty_result_is_published_for_those_who_wait(
    opened: Callable[..., KernelCache],
) -> None:
    first = opened()
    first.keep()
    assert opened()._restored
