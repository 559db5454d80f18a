"""Mismatches are refused before the engine files are fetched."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.hub.server import HubServer
from tests.fakes.s3.server import S3Server
from tests.fakes.triton import engine_config

from trtllm_truss.cli.check import examine
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.gpus import Gpu
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.manifest import (
    FileRecord,
    Manifest,
    Origin,
    TargetGpu,
    read_manifest,
    record_files,
    write_manifest,
)
from trtllm_truss.errors import ArtifactError, SettingsError
from trtllm_truss.processes.mpi_job import Rank
from trtllm_truss.serving.preparation import ResolvedEngine, resolve_engine
from trtllm_truss.settings.loading import Environment, parse_settings
from trtllm_truss.text.tokenizer import load_tokenizer

CONFIG = json.dumps(engine_config(2, 1, {})).encode()
RANKS = {"rank0.engine": b"a" * 5000, "rank1.engine": b"b" * 5000}
ENGINE = {"config.json": CONFIG, **RANKS}
OF_TWO_RANKS = {"engine_repository": "org/engine", "tensor_parallelism": 2}
H100 = Gpu(
    name="NVIDIA H100 80GB HBM3",
    compute_capability=(9, 0),
    total_bytes=80_000_000_000,
    free_bytes=79_000_000_000,
    driver_version="575.57.08",
)


def tokenizer_json() -> bytes:
    from tokenizers import Tokenizer, models

    return Tokenizer(models.WordLevel({"<unk>": 0, "hi": 1}, unk_token="<unk>")).to_str().encode()


def examined(host: HostInfo | None = None, **metadata: Any) -> ResolvedEngine:
    content = {"engine_repository": "org/engine", "tensor_parallelism": 2, **metadata}
    settings = parse_settings({"model_metadata": content})
    return resolve_engine(settings, Environment("hf_token", {}), host or HostInfo())


def manifest(**changes: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "tensorrt_llm_version": "1.0.0",
        "world_size": 2,
        "gpu": {"name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"},
    }
    return {**known, **changes}


@pytest.fixture(autouse=True)
def repositories(hub: HubServer) -> None:
    hub.add_token("hf_token")
    hub.add("org/engine", {**ENGINE, "tokenizer.json": tokenizer_json(), "notes.txt": b"x"})
    hub.add("org/tokenizer", {"tokenizer.json": tokenizer_json(), "pytorch_model.bin": b"x"})


def change(hub: HubServer, files: dict[str, bytes], *removed: str) -> None:
    hub.repositories["org/engine"].commit(files, removed=removed)


def test_only_needed_files_are_fetched(hub: HubServer) -> None:
    engine = examined().engine
    assert isinstance(engine, Engine)
    assert sorted(path.name for path in engine.folder.iterdir()) == [
        "config.json", "rank0.engine", "rank1.engine", "tokenizer.json",
    ]  # fmt: skip
    config, *others = [r.path.rpartition("/")[2] for r in hub.asked_for("*/resolve/*")]
    assert config == "config.json"
    assert "config.json" not in others


@pytest.mark.parametrize(
    ("split", "index", "rank"),
    [("tensor", 0, 0), ("tensor", 1, 1), ("pipeline", 0, 1), ("pipeline", 1, 0)],
)
def test_each_of_several_hosts_fetches_the_files_that_its_rank_opens(
    hub: HubServer, split: str, index: int, rank: int
) -> None:
    """Rank 0 is in the last pipeline stage. The other ranks need no tokenizer."""
    if split == "pipeline":
        change(hub, {"config.json": json.dumps(engine_config(1, 2, {})).encode()})
    metadata = {"engine_repository": "org/engine", f"{split}_parallelism": 2, "nodes": 2}
    settings = parse_settings({"model_metadata": metadata})
    token, job = Environment("hf_token", {}), Rank(index, size=2, each=1)
    found = resolve_engine(settings, token, HostInfo(), rank=job)
    names = {path.name for path in found.engine.folder.iterdir()}
    own = {"config.json", f"rank{rank}.engine"}
    assert names == (own if index else {*own, "tokenizer.json"})
    assert {file.path for file in found.listing.files} >= set(RANKS)


def test_a_rank_of_a_launcher_fetches_its_own_file(hub: HubServer) -> None:
    settings = parse_settings({"model_metadata": OF_TWO_RANKS})
    token = Environment("hf_token", {})
    for index in (1, 0):
        rank = Rank(index, size=2, each=2)
        found = resolve_engine(settings, token, HostInfo(), rank=rank)
        assert hub.asked_for(f"*/rank{index}.engine")
        assert bool(hub.asked_for("*/resolve/*/tokenizer.json")) is (index == 0)
    names = {path.name for path in found.engine.folder.iterdir()}
    assert names == {"config.json", "rank0.engine", "rank1.engine", "tokenizer.json"}


@pytest.mark.parametrize("index", range(4))
def test_a_wrong_number_of_ranks_is_refused_on_each_before_a_download(
    hub: HubServer, index: int
) -> None:
    settings = parse_settings({"model_metadata": OF_TWO_RANKS})
    with pytest.raises(SettingsError, match=f"is rank {index} of 4, but the engine has 2 ranks"):
        resolve_engine(settings, Environment("hf_token", {}), HostInfo(), rank=Rank(index, 4, 2))
    assert not hub.asked_for("*.engine")
    assert not hub.asked_for("*tokenizer.json")


def test_a_rank_that_sees_its_own_gpu_only_is_refused(hub: HubServer) -> None:
    settings = parse_settings({"model_metadata": OF_TWO_RANKS})
    with pytest.raises(
        SettingsError, match=r"1 of 2 GPUs are visible to rank 1\..*--gpus-per-task"
    ):
        resolve_engine(
            settings, Environment("hf_token", {}), HostInfo(gpus=[H100]), rank=Rank(1, 2, 2)
        )
    assert not hub.asked_for("*.engine")


def test_a_separate_tokenizer_repository(hub: HubServer) -> None:
    found = examined(tokenizer_repository="org/tokenizer")
    assert not (found.engine.folder / "tokenizer.json").exists()
    assert hub.asked_for("/org/tokenizer/resolve/*"), "fetched together with the engine"
    assert not hub.asked_for("*pytorch_model.bin")
    assert len(hub.asked_for("/api/models/org/tokenizer*")) == 1, "listed once"
    assert load_tokenizer(found.tokenizer_folder).encode("hi") == [1]
    hub.forget()
    assert examined(tokenizer_repository="org/tokenizer") == found
    assert not hub.asked_for("*/resolve/*")


@pytest.mark.parametrize(
    ("metadata", "host", "part"),
    [
        ({"tensor_parallelism": 4}, HostInfo(), "built for 2"),
        ({}, HostInfo(runtime_version="0.18.2"), "25.10-trtllm-python-py3"),
        ({}, HostInfo(gpus=[H100]), "1 are visible here"),
        ({"runtime": {"max_batch_size": 999}}, HostInfo(), "limit is 64"),
    ],
)
def test_an_engine_that_does_not_fit(
    hub: HubServer, metadata: dict[str, Any], host: HostInfo, part: str
) -> None:
    with pytest.raises(SettingsError, match=part):
        examined(host, **metadata)
    assert not hub.asked_for("*.engine", "GET")
    assert not hub.asked_for("*.engine", "HEAD")


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"manifest": {"tensorrt_llm_version": "0.9.0"}}, "are from different builds"),
        ({"manifest": {"world_size": 4}}, "are from different builds"),
        (
            {"manifest": {"files": {"rank0.engine": {"bytes": 5000, "sha256": "0" * 64}}}},
            "rank0.engine in the engine repository differs",
        ),
        (
            {"manifest": {"files": {"rank7.engine": {"bytes": 1, "sha256": "0" * 64}}}},
            "lists rank7.engine, which is missing",
        ),
        (
            {"manifest": {"files": {"rank0.engine": {"bytes": 1, "sha256": "x"}}}},
            "it must match",
        ),
        ({"manifest": {"schema": 2}}, "use a newer release"),
        ({"removed": "rank1.engine"}, "missing: rank1.engine"),
        ({"removed": "config.json"}, "engine files but no config.json"),
        ({"removed": "tokenizer.json"}, "no tokenizer found"),
        (
            {"removed": "tokenizer.json", "added": {"tokenizer.pkl": b"x"}},
            "tokenizer.pkl would run its author's code",
        ),
        ({"added": {"a.gguf": b""}, "removed": "rank1.engine"}, "missing: rank1.engine"),
    ],
)
def test_invalid_repositories(hub: HubServer, changes: dict[str, Any], part: str) -> None:
    added = dict(changes.get("added", {}))
    if "manifest" in changes:
        added["engine.manifest.json"] = json.dumps(manifest(**changes["manifest"])).encode()
    change(hub, added, *([changes["removed"]] if "removed" in changes else []))
    with pytest.raises((ArtifactError, SettingsError)) as caught:
        examined()
    assert part in caught.value.message
    assert not hub.asked_for("*.engine")


def test_another_gpu_than_the_builders(hub: HubServer) -> None:
    content = manifest(gpu={"name": "NVIDIA L4", "compute_capability": "8.9"})
    change(hub, {"engine.manifest.json": json.dumps(content).encode()})
    with pytest.raises(SettingsError, match="was built on NVIDIA L4"):
        examined(HostInfo(gpus=[H100, H100]))
    assert not hub.asked_for("*.engine")


def test_gpus_that_the_ranks_cannot_have(hub: HubServer) -> None:
    with pytest.raises(SettingsError, match="gpu_device_ids names 3 GPUs"):
        examined(runtime={"gpu_device_ids": "0,1,2"})
    assert not hub.asked_for("*.engine")


def test_a_tokenizer_without_rights_stops_the_engine(hub: HubServer) -> None:
    hub.add("org/locked", {"tokenizer.json": b"{}"}, private=True)
    hub.add_token("hf_token", reads=frozenset({"org/engine"}))
    with pytest.raises(ArtifactError, match="tokenizer_repository 'org/locked' does not exist"):
        examined(tokenizer_repository="org/locked")
    assert not hub.asked_for("*.engine")


def test_a_tokenizer_of_another_revision_is_reported(hub: HubServer) -> None:
    content = manifest(tokenizer={"repository": "org/tokenizer", "revision": "abc"})
    change(hub, {"engine.manifest.json": json.dumps(content).encode()})
    findings = examined(tokenizer_repository="org/tokenizer").findings
    assert [finding.code for finding in findings] == ["tokenizer_revision_differs"]
    assert "org/tokenizer at abc" in findings[0].message


def test_the_layout_of_lmi(hub: HubServer) -> None:
    for name, above in (("org/lmi", "tensorrt_llm/"), ("org/in", ""), ("org/deep", "a/llm/")):
        beside = {"config.pbtxt": b"x", "tokenizer.json": tokenizer_json(), "config.json": b"{}"}
        engine = {f"1/{path}": data for path, data in ENGINE.items()}
        hub.add(name, {f"{above}{path}": data for path, data in {**beside, **engine}.items()})
        found = examined(engine_repository=name)
        assert found.engine.folder == found.tokenizer_folder / "1"
        assert {path.name for path in found.engine.folder.iterdir()} == ENGINE.keys()
        assert load_tokenizer(found.tokenizer_folder).encode("hi") == [1]


def test_two_engines_in_the_layout_of_lmi(hub: HubServer) -> None:
    files = {f"{n}/{p}": b"x" for n in "ab" for p in ("config.pbtxt", "1/rank0.engine")}
    hub.add("org/two", files)
    with pytest.raises(ArtifactError, match=r"holds 2 engines \(a, b\)"):
        examined(engine_repository="org/two")


def test_an_engine_from_s3(s3: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    s3.upload("engines", "tp2", {**ENGINE, "tokenizer.json": tokenizer_json()})
    caplog.set_level(logging.INFO)
    with pytest.raises(SettingsError, match="built for 2"):
        examined(engine_repository="s3://engines/tp2", tensor_parallelism=1)
    assert "fetching 10.0 kB" not in caplog.text
    engine = examined(engine_repository="s3://engines/tp2").engine
    assert (engine.folder / "rank1.engine").read_bytes() == RANKS["rank1.engine"]


def test_check_reads_no_engine(hub: HubServer, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    content = {
        "model_metadata": {"engine_repository": "org/engine", "tokenizer_repository": "org/gone"}
    }
    file.write_text(json.dumps(content))
    report = examine(tmp_path, file)
    assert report.status == 3
    sentences = " ".join(finding.message for finding in report.findings)
    assert "tensor_parallelism is 1" in sentences
    assert "tokenizer_repository 'org/gone' does not exist" in sentences
    assert not hub.asked_for("*.engine")


def test_a_manifest_survives_a_round_trip(tmp_path: Path, cache: Path) -> None:
    for name, data in ENGINE.items():
        (tmp_path / name).write_bytes(data)
    written = Manifest(
        tensorrt_llm_version="1.0.0",
        gpu=TargetGpu(name="NVIDIA L4", compute_capability=(8, 9)),
        world_size=2,
        build_key="k",
        build_options={"max_batch_size": 64},
        checkpoint=Origin(repository="org/model", revision="abc"),
        tokenizer=Origin(repository="org/model"),
        files=record_files(tmp_path, ENGINE),
    )
    write_manifest(tmp_path, written)
    assert read_manifest(tmp_path) == written
    assert written.files["rank0.engine"] == FileRecord(
        size=5000, sha256=written.files["rank0.engine"].sha256
    )
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json())
    assert examined(engine_repository=str(tmp_path)).engine.manifest == written
    (tmp_path / "rank1.engine").write_bytes(b"c" * 5000)
    with pytest.raises(ArtifactError, match=r"rank1\.engine in the engine repository differs"):
        examined(engine_repository=str(tmp_path))
