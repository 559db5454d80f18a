"""Files that Baseten delivers: mounted `weights`, and `model_cache` with a volume."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import truss_transfer
from tests.fakes.hub.server import HubServer
from tests.fakes.triton import engine_config
from tests.support.model_module import model_module, truss_config, truss_module
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE_S

from trtllm_truss.artifacts import listing
from trtllm_truss.artifacts.open_repository import open_repository
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.manifest import Manifest, record_files, write_manifest
from trtllm_truss.errors import ArtifactError, StartupError
from trtllm_truss.serving import mounted_files
from trtllm_truss.serving.mounted_files import MountedFiles
from trtllm_truss.serving.preparation import resolve_engine
from trtllm_truss.settings.loading import Environment, parse_settings
from trtllm_truss.settings.model import Mount


@pytest.fixture
def resolvers() -> ModuleType:
    return truss_module("templates/shared/lazy_data_resolver.py")


@pytest.fixture
def delivered(tmp_path: Path, resolvers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that Truss's resolver writes."""
    manifest = tmp_path / "bptr-manifest"
    manifest.touch()
    folder = tmp_path / "model_cache/engine"

    def write(data_dir: str) -> str:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("delivered")
        return str(tmp_path)

    monkeypatch.setattr(resolvers, "LAZY_DATA_RESOLVER_PATH", [manifest])
    monkeypatch.setattr(truss_transfer, "lazy_data_resolve", write)
    return folder


def load(folder: Path, resolver: object) -> None:
    model_module().Model(
        config={"model_metadata": {"engine_repository": str(folder)}},
        secrets={},
        data_dir=ROOT / "data",
        lazy_data_resolver=resolver,
    ).load()


def test_a_start_waits_for_the_model_cache(delivered: Path, resolvers: ModuleType) -> None:
    resolver = resolvers.LazyDataResolverV2(delivered.parent)
    with pytest.raises(StartupError, match=r"config\.json"):  # read, after the delivery
        load(delivered, resolver)
    resolver.raise_if_not_collected()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # Truss's own
def test_a_failed_delivery_ends_the_start(
    delivered: Path, resolvers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(data_dir: str) -> str:
        raise OSError("403 Forbidden")

    monkeypatch.setattr(truss_transfer, "lazy_data_resolve", fail)
    resolver = resolvers.LazyDataResolverV2(delivered.parent)
    with pytest.raises(StartupError, match=r"model_cache: .*403 Forbidden.*Check"):
        load(delivered, resolver)
    for thread in threading.enumerate():
        if "_prefetch" in thread.name:
            thread.join()  # its exception belongs to this test


def test_a_start_without_a_model_cache_waits_for_nothing(
    tmp_path: Path, resolvers: ModuleType
) -> None:
    resolver = resolvers.LazyDataResolverV2(tmp_path)
    for each in (resolver, None):
        with pytest.raises(StartupError, match="does not exist"):
            load(tmp_path / "engine", each)


CONFIG = json.dumps(engine_config(2, 1, {})).encode()
RANKS = {"rank0.engine": b"a" * 5000, "rank1.engine": b"b" * 5000}
TOKENIZER = {"tokenizer.json": b"{}"}
ENGINE = {"config.json": CONFIG, **RANKS, **TOKENIZER}


def fill(folder: Path, files: dict[str, bytes], *, with_manifest: bool = True) -> Path:
    """Fill a folder as the platform fills a mount, and record its files as a build does."""
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    if with_manifest:
        write_manifest(folder, Manifest(files=record_files(folder, files)))
    return folder


def resolved(mount: Path, source: str = f"hf://org/engine@{'a' * 40}", **more: Any) -> Any:
    metadata = {"engine_repository": "org/engine", "tensor_parallelism": 2, **more}
    weights = [{"source": source, "mount_location": str(mount)}]
    settings = parse_settings({"model_metadata": metadata, "weights": weights})
    return resolve_engine(settings, Environment(None, {}), HostInfo())


def read_ahead(metadata: dict[str, Any], **more: Any) -> list[str]:
    """Resolve an engine and return the names of the files that are read ahead."""
    found: list[Path] = []
    settings = parse_settings({"model_metadata": {**metadata, "tensor_parallelism": 2}, **more})
    resolve_engine(settings, Environment(None, {}), HostInfo(), read_ahead=found.extend)
    assert all(file.is_file() for file in found)
    return sorted(file.name for file in found)


def test_served_files_are_read_ahead_where_they_are_here_already(
    tmp_path: Path, hub: HubServer
) -> None:
    hub.add("org/engine", {**ENGINE, "notes.txt": b"not served"})
    downloaded = {"engine_repository": "org/engine"}
    assert read_ahead(downloaded) == ["config.json"]  # the rest has just been written
    assert read_ahead(downloaded) == sorted(ENGINE)
    mount = fill(tmp_path / "mount", {**ENGINE, "notes.txt": b"not served"}, with_manifest=False)
    assert read_ahead({"engine_repository": str(mount)}) == sorted(ENGINE)
    weights = [{"source": f"hf://org/other@{'a' * 40}", "mount_location": str(mount)}]
    assert read_ahead({"engine_repository": "org/other"}, weights=weights) == sorted(ENGINE)


def test_a_mounted_engine_is_neither_fetched_nor_hashed(
    tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/engine", ENGINE)
    mount = fill(tmp_path / "mount", ENGINE)
    monkeypatch.setattr(listing, "_hash", pytest.fail)
    found = resolved(mount)
    assert found.engine.folder == found.tokenizer_folder == mount
    assert hub.requests == []
    assert found.unchecked.keys() == {mount / name for name in ENGINE}
    assert found.listing.commit == "a" * 40


@pytest.mark.parametrize("is_there", [False, True])
def test_the_same_config_downloads_where_nothing_is_mounted(
    tmp_path: Path, hub: HubServer, is_there: bool
) -> None:
    hub.add("org/engine", ENGINE)
    mount = tmp_path / "mount"
    if is_there:
        mount.mkdir()
    found = resolved(mount)
    assert mount not in found.engine.folder.parents
    assert len(hub.asked_for("*/resolve/*", "GET")) == len(ENGINE)
    assert found.unchecked == {}


def test_a_mount_of_another_revision_is_not_used(
    tmp_path: Path, hub: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    hub.add("org/engine", ENGINE)
    mount = fill(tmp_path / "mount", ENGINE)
    found = resolved(mount, engine_revision="main")
    assert found.engine.folder != mount
    assert "the mount is not used" in caplog.text


@pytest.mark.parametrize("with_manifest", [False, True])
def test_a_missing_rank_is_named_before_the_start(tmp_path: Path, with_manifest: bool) -> None:
    mount = fill(tmp_path / "mount", ENGINE, with_manifest=with_manifest)
    (mount / "rank1.engine").unlink()
    with pytest.raises(StartupError, match=r"rank1\.engine"):
        resolved(mount)


def test_a_wrong_size_is_named_before_the_start(tmp_path: Path) -> None:
    mount = fill(tmp_path / "mount", ENGINE)
    (mount / "rank1.engine").write_bytes(b"b" * 4999)
    with pytest.raises(ArtifactError, match=r"rank1\.engine .* differs from engine\.manifest"):
        resolved(mount)


def test_files_that_serving_needs_not_may_be_left_out(tmp_path: Path) -> None:
    mount = fill(tmp_path / "mount", {**ENGINE, "build.log": b"x"})
    (mount / "build.log").unlink()
    assert resolved(mount).unchecked.keys() == {mount / name for name in ENGINE}


def test_links_of_the_platform_lead_where_they_want(tmp_path: Path) -> None:
    blobs = fill(tmp_path / "blobs", ENGINE)
    mount = tmp_path / "mount"
    mount.mkdir()
    for file in blobs.iterdir():
        (mount / file.name).symlink_to(file)
    assert resolved(mount).engine.folder == mount


@pytest.mark.parametrize(
    ("source", "repository"),
    [
        ("hf://org/engine", "org/engine"),
        ("s3://bucket/engines/llama", "s3://bucket/engines/llama/"),
        *((f"{kind}://bucket/llama", f"{kind}://bucket/llama") for kind in ("s3", "gs", "azure")),
        *((f"{kind}://bucket", f"{kind}://bucket/") for kind in ("r2", "cw")),
    ],
)
def test_sources_of_weights(tmp_path: Path, hub: HubServer, source: str, repository: str) -> None:
    mount = fill(tmp_path / "mount", ENGINE)
    found = resolved(mount, source, engine_repository=repository)
    assert found.engine.folder == mount
    assert hub.requests == []
    truss_config().from_dict({"weights": [{"source": source, "mount_location": str(mount)}]})


def test_a_folder_below_a_mounted_bucket(tmp_path: Path) -> None:
    mount = fill(tmp_path / "mount/llama", ENGINE)
    for repository in ("gs://bucket/engines/llama", str(mount)):
        found = resolved(tmp_path / "mount", "gs://bucket/engines", engine_repository=repository)
        assert found.engine.folder == mount
        assert found.unchecked


def test_a_volume(tmp_path: Path) -> None:
    mount = fill(tmp_path / "mount", ENGINE)
    config = {
        "model_metadata": {"engine_repository": "bdn:engines/llama:prod", "tensor_parallelism": 2},
        "bdn": {"mounts": [{"source": "bdn:engines/llama:prod", "path": str(mount)}]},
    }
    truss_config().from_dict(config)
    found = resolve_engine(parse_settings(config), Environment(None, {}), HostInfo())
    assert found.engine.folder == mount


def test_one_file_from_a_url(tmp_path: Path) -> None:
    mount = tmp_path / "data/model.gguf"
    mount.parent.mkdir()
    mount.write_bytes(b"GGUF")
    (mount.parent / "other.gguf").write_bytes(b"GGUF")
    url = "https://example.com/model.gguf"
    source = open_repository(
        url, None, setting="engine_repository", token=None, mounts=[Mount(url, mount)]
    )
    assert source.listing().sizes == {"model.gguf": 4}
    assert source.fetch(["model.gguf"]) == mount.parent


@pytest.mark.parametrize("repository", ["gs://bucket/engine", "bdn:engines/llama"])
def test_a_source_that_only_the_platform_delivers(repository: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="only Baseten delivers"):
        resolved(tmp_path / "mount", repository, engine_repository=repository)


@pytest.mark.parametrize("section", [None, 7, {}, [7], [{"source": 1}], [{"source": "a"}]])
def test_entries_of_another_shape_are_left_to_truss(section: object) -> None:
    config = {
        "model_metadata": {"engine_repository": "a/b"},
        "weights": section,
        "bdn": {"mounts": section} if section else section,
    }
    assert parse_settings(config).mounts == ()


def test_a_changed_byte_is_found_beside_the_running_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mount = fill(tmp_path / "mount", ENGINE)
    hashes = resolved(mount).unchecked
    (mount / "rank1.engine").write_bytes(b"b" * 4999 + b"c")
    told: list[None] = []
    with MountedFiles(hashes, lambda: told.append(None)).checking() as check:
        check.wait()
        assert check.differing == (mount / "rank1.engine",)
        assert check.unchecked_bytes == 0
    assert len(told) == 1
    assert "rank1.engine differs from engine.manifest.json" in caplog.text


def test_the_check_pauses_for_what_it_reads_and_ends_with_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine may leave a thread of the lowest priority waiting for seconds."""
    monkeypatch.setattr(mounted_files, "_PATIENCE_S", PATIENCE_S)
    file = tmp_path / "file"
    with file.open("wb") as stream:
        stream.truncate(100 << 20)
    paused, reading = [], threading.Event()
    released = threading.Event()

    def rest(seconds: float) -> bool:
        paused.append(seconds)
        reading.set()
        released.wait()
        return True

    check = MountedFiles({file: "other"}, rest=rest)
    with check.checking():
        reading.wait()
        thread = next(each for each in threading.enumerate() if each.name == "mounted-files")
        assert os.getpriority(os.PRIO_PROCESS, thread.native_id or 0) == 19
        check._stopping.set()
        released.set()
    assert not thread.is_alive()
    assert paused == [(4 << 20) / 100e6]
    assert check.differing == ()
