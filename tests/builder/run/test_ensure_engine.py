"""CPU builds from a checkpoint to an engine and a repository, with real parts."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builder.llama_checkpoint import write_smollm2_checkpoint, write_tiny_checkpoint
from tests.fakes.hub.server import SIGNATURE, HubServer
from tests.support.paths import ROOT
from tests.support.smollm2 import write_small_smollm2
from tests.support.truss_process import Served
from tests.support.waiting import PATIENCE_S

from trtllm_builder.jobs import builds_folder, prepare_build
from trtllm_builder.publishing import publish
from trtllm_builder.run import ensure_engine, keep_ends
from trtllm_truss.artifacts.listing import tokenizer_files
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import inspect_engine
from trtllm_truss.engines.manifest import read_manifest
from trtllm_truss.errors import ArtifactError, BuildError, SettingsError
from trtllm_truss.settings.loading import Environment, parse_settings
from trtllm_workbench.cli.main import main

# huggingface_hub's uploads cause a warning of its HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

INT8 = {"method": "int8_weight_only"}
TOKEN = "hf_writer"


def block(checkpoint: Path | str, **build: Any) -> dict[str, Any]:
    return {"checkpoint_repository": str(checkpoint), "backend": "openvino_genai", **build}


def config(folder: Path, build: dict[str, Any]) -> str:
    content = yaml.safe_load((ROOT / "config.yaml").read_text())
    content |= {"model_metadata": {"build": build}, "resources": {"use_gpu": False}}
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(content))
    return str(file)


def ensured(build: dict[str, Any], token: str | None = None) -> Path:
    settings = parse_settings({"model_metadata": {"build": build}})
    return ensure_engine(settings, Environment(token, dict(os.environ)), HostInfo())


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    write_tiny_checkpoint(folder)
    return folder


def test_an_unwritable_output_fails_before_the_build(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtllm_truss.cli.build.build_engine", pytest.fail)
    file = config(tmp_path, block(tiny))
    assert main(["build", "--config", file, "--output", f"{file}/engine"]) == 2
    assert f"--output {file}/engine cannot be written (" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.server
def test_build_then_publish_then_serve(
    smollm2_checkpoint: Path,
    tmp_path: Path,
    hub: HubServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TRUSS_SECRET_hf_access_token", hub.add_token(TOKEN, "org"))
    file = config(tmp_path, block(smollm2_checkpoint, quantization=INT8))
    output = tmp_path / "engine"
    assert main(["build", "--config", file, "--output", str(output)]) == 0
    engine = inspect_engine(output)
    assert (engine.backend, engine.max_sequence_tokens) == ("openvino_genai", 8192)
    assert main(["publish", "--config", file, "--to", "org/engine"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out.partition("\n")[2])
    repository = hub.repositories["org/engine"]
    assert repository.private
    assert len(repository.messages) == 1
    card = repository.files["README.md"].decode()
    assert "engine_repository: org/engine" in card
    assert TOKEN not in card

    served_from = tmp_path / "serve.yaml"
    content = yaml.safe_load(Path(file).read_text()) | printed
    served_from.write_text(yaml.safe_dump(content))
    served = Served(served_from, {"HF_HOME": str(tmp_path / "elsewhere")}).wait_until_ready()
    try:
        body = {"prompt": "The capital of France is", "max_tokens": 3, "top_k": 1}
        assert served.post({**body, "stream": False}).json()["text"].startswith(" Paris.")
    finally:
        served.end()


@pytest.mark.server
@pytest.mark.parametrize(
    "starts",
    [
        1,
        # In every run: test_the_same_build_is_found_and_another_is_made
        pytest.param(2, marks=pytest.mark.thorough),
    ],
)
def test_a_truss_builds_its_engine_while_loading_and_finds_it_again(
    tmp_path: Path, starts: int
) -> None:
    (model,) = write_small_smollm2(tmp_path / "small").iterdir()
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    write_smollm2_checkpoint(checkpoint, model)
    file = Path(config(tmp_path, block(checkpoint, quantization=INT8)))
    made_at, texts = [], []
    for _ in range(starts):
        served = Served(file, {"HF_HOME": str(tmp_path / "home")}).wait_until_ready()
        try:
            body = {"prompt": "The capital of France is", "max_tokens": 3, "top_k": 1}
            texts.append(served.post({**body, "stream": False}).json()["text"])
        finally:
            served.end()
        (engine,) = (tmp_path / "home").rglob("model.gguf")
        made_at.append(engine.stat().st_mtime_ns)
    assert len(set(made_at)) == len(set(texts)) == 1
    assert texts[0]


def test_the_same_build_is_found_and_another_is_made(tiny: Path, cache: Path) -> None:
    first = ensured(block(tiny, quantization=INT8))
    made_at = (first / "model.gguf").stat().st_mtime_ns
    assert ensured(block(tiny, quantization=INT8)) == first
    assert (first / "model.gguf").stat().st_mtime_ns == made_at
    others = {
        ensured(block(tiny)),
        ensured(block(tiny, quantization=INT8, max_seq_len=128)),
    }
    (tiny / "config.json").touch()  # a new time counts as a changed checkpoint
    others.add(ensured(block(tiny, quantization=INT8)))
    assert len({first, *others}) == 4


def test_the_manifest_describes_the_build(tiny: Path, cache: Path) -> None:
    folder = ensured(block(tiny, quantization=INT8))
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest.build_key == folder.parent.name
    assert manifest.build_options["quantization"] == INT8
    assert manifest.tensorrt_llm_version is None
    assert set(manifest.files) == {"model.gguf", "tokenizer.json", "generation_config.json"}
    assert not (folder.parent / "converted").exists()


def test_a_replica_downloads_what_another_has_published(
    tiny: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoint = {file.name: file.read_bytes() for file in tiny.iterdir()}
    hub.add("org/tiny", checkpoint)
    token = hub.add_token(TOKEN, "org")
    wanted = block("org/tiny", quantization=INT8, publish_to="org/engine")
    built = ensured(wanted, token)
    assert built.is_relative_to(builds_folder())
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", str(tmp_path / f"replica-{name}"))
    hub.forget()
    fetched = ensured(wanted, token)
    assert not fetched.is_relative_to(builds_folder())
    assert (fetched / "model.gguf").read_bytes() == (built / "model.gguf").read_bytes()
    assert not hub.asked_for("*/org/tiny/*model.safetensors")
    changed = ensured(wanted | {"max_seq_len": 64}, token)
    assert changed.is_relative_to(builds_folder())
    assert len(hub.repositories["org/engine"].messages) == 2
    manifest = json.loads(hub.repositories["org/engine"].files["engine.manifest.json"])
    assert manifest["checkpoint"]["revision"] == hub.repositories["org/tiny"].revisions["main"]


def test_replicas_share_a_build_on_the_platforms_volume(
    tiny: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "volume"
    (volume / "trtllm-truss/builds/unused").mkdir(parents=True)
    os.utime(volume / "trtllm-truss/builds/unused", (0, 0))
    monkeypatch.setattr("trtllm_truss.artifacts.open_repository.WRITABLE_VOLUME", volume)
    built = ensured(block(tiny))
    assert built.is_relative_to(builds_folder())
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "replica"))
    shared = ensured(block(tiny))
    assert shared == volume / "trtllm-truss/builds" / built.parent.name / "engine"
    assert not builds_folder().exists()
    assert {path.name for path in shared.parents[1].iterdir()} == {built.parent.name}
    assert {path.name for path in shared.parent.iterdir()} == {"lock", "steps", "engine"}
    weights = shared / "model.gguf"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))  # damaged: built again, and replaced
    assert ensured(block(tiny)).is_relative_to(builds_folder())
    assert weights.read_bytes()[-1] == whole[-1]
    (shared / "engine.manifest.json").write_text("{")
    ensured(block(tiny))
    assert inspect_engine(shared).backend == "openvino_genai"


def test_an_engine_that_cannot_be_published_is_served_all_the_same(
    tiny: Path, hub: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        folder = ensured(block(tiny, publish_to="org/engine"))
    assert inspect_engine(folder).backend == "openvino_genai"
    assert "hf_access_token" in caplog.text


def test_a_failing_hub_is_not_mistaken_for_an_empty_one(tiny: Path, hub: HubServer) -> None:
    hub.fault("/api/models/org/engine*", status=503, times=100)
    with pytest.raises(ArtifactError, match=r"build\.publish_to 'org/engine' met HTTP status 503"):
        ensured(block(tiny, publish_to="org/engine"), hub.add_token(TOKEN, "org"))
    assert not builds_folder().exists()


def test_a_failed_upload_reveals_no_signed_url(
    tiny: Path, hub: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.fault("/lfs/*", status=403, times=100)
    engine = ensured(block(tiny))
    with pytest.raises(
        BuildError, match="failed to upload a large file; publish it again"
    ) as caught:
        publish(engine, "org/engine", hub.add_token(TOKEN, "org"))
    assert hub.asked_for("/lfs/*", "PUT")
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert SIGNATURE not in shown
    assert TOKEN not in shown


@pytest.mark.parametrize("backend", ["openvino_genai", "tensorrtllm"])
@pytest.mark.parametrize("place", ["hub", "folder"])
def test_weights_that_are_pickles_need_consent(
    tiny: Path, hub: HubServer, tmp_path: Path, backend: str, place: str
) -> None:
    (tiny / "model.safetensors").rename(tiny / "pytorch_model.bin")
    hub.add("org/tiny", {file.name: file.read_bytes() for file in tiny.iterdir()})
    wanted = {"checkpoint_repository": "org/tiny" if place == "hub" else str(tiny)}
    metadata = {"build": {**wanted, "backend": backend}, "trust_remote_code": False}
    words = "only pickled weights (.bin), which run code when loaded; convert them to"
    with pytest.raises(SettingsError, match=re.escape(words)) as caught:
        prepare_build(parse_settings({"model_metadata": metadata}), HostInfo(), None)
    assert ("set trust_remote_code to true" in caught.value.message) == (backend == "tensorrtllm")
    trusting = parse_settings({"model_metadata": {**metadata, "trust_remote_code": True}})
    if backend == "tensorrtllm":
        assert prepare_build(trusting, HostInfo(), None).source.weights == ".bin"
    else:
        with pytest.raises(SettingsError, match="pickled weights"):
            prepare_build(trusting, HostInfo(), None)
    assert not hub.asked_for("*.bin")


def test_weights_that_are_both_are_fetched_as_safetensors(tiny: Path, hub: HubServer) -> None:
    (tiny / "pytorch_model.bin").write_bytes(b"a pickle")
    (tiny / "training_args.bin").write_bytes(b"a pickle")
    hub.add("org/tiny", {file.name: file.read_bytes() for file in tiny.iterdir()})
    assert inspect_engine(ensured(block("org/tiny"))).backend == "openvino_genai"
    assert not hub.asked_for("*.bin")


def test_publishing_needs_the_right_to_write(
    tiny: Path,
    tmp_path: Path,
    hub: HubServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = config(tmp_path, block(tiny))
    assert main(["build", "--config", file]) == 0
    command = ["publish", "--config", file, "--to", "org/engine"]
    monkeypatch.setenv("TRUSS_SECRET_hf_access_token", hub.add_token(TOKEN, "org"))
    hub.fault("/api/models/org/engine/commit/main", status=403)
    assert main(command) == 1
    assert "may not write" in (words := capsys.readouterr().err)
    assert TOKEN not in words
    hub.fault("/api/models/org/engine/commit/main", status=503)
    assert main(command) == 0, "the upload is retried"
    assert len(hub.repositories["org/engine"].messages) == 1


@pytest.mark.thorough
def test_a_killed_conversion_leaves_nothing_half(
    smollm2_checkpoint: Path, tmp_path: Path, cache: Path
) -> None:
    file = config(tmp_path, block(smollm2_checkpoint))
    command = [sys.executable, "-m", "trtllm_truss", "build", "--config", file]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while not list(builds_folder().glob("*/engine/*.partial")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list(builds_folder().glob("*/engine/model.gguf"))
    assert subprocess.run(command, capture_output=True, timeout=240).returncode == 0
    (engine,) = builds_folder().glob("*/engine")
    assert inspect_engine(engine).max_sequence_tokens == 8192
    assert not list(engine.glob("*.partial"))


def test_publishing_needs_a_build_and_a_place(
    tiny: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config(tmp_path, block(tiny))
    assert main(["publish", "--config", file]) == 2
    assert "build.publish_to" in capsys.readouterr().err
    assert main(["publish", "--config", file, "--to", "org/engine"]) == 1
    assert "run `trtllm-truss build` first" in capsys.readouterr().err
    assert main(["publish", "--engine", str(tiny), "--to", "org/engine"]) == 1
    assert "engine.manifest.json" in capsys.readouterr().err


def test_what_cannot_be_built_is_refused_before_weights_are_fetched(
    tiny: Path, tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add("org/tiny", {file.name: file.read_bytes() for file in tiny.iterdir()})
    file = config(tmp_path, block("org/tiny", quantization={"method": "awq"}))
    assert main(["build", "--config", file]) == 2
    assert "awq needs a GPU" in capsys.readouterr().err
    assert not hub.asked_for("*.safetensors")


def test_every_file_of_a_tokenizer_is_copied() -> None:
    names = ["spiece.model", "vocab.txt", "a.tiktoken", "additional_chat_templates/tool_use.jinja"]
    others = ["config.json", "model.safetensors", "modeling_x.py"]
    assert tokenizer_files([*names, *others]) == sorted(names)


@pytest.mark.parametrize(
    ("config", "generation", "kept"),
    [
        ({"eos_token_id": [0, 2]}, {"top_k": 64}, {"top_k": 64, "eos_token_id": [0, 2]}),
        ({"text_config": {"eos_token_id": 2}}, None, {"eos_token_id": [2]}),
        ({"eos_token_id": 0}, {"eos_token_id": 2}, {"eos_token_id": 2}),
        ({}, None, None),
    ],
)
def test_ends_of_a_checkpoints_config_are_kept_where_the_engines_takes_its_place(
    tmp_path: Path, config: dict[str, Any], generation: Any, kept: Any
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = tmp_path / "engine"
    engine.mkdir()
    if generation is not None:
        for folder in (tmp_path, engine):
            (folder / "generation_config.json").write_text(json.dumps(generation))
    keep_ends(tmp_path, engine)
    file = engine / "generation_config.json"
    assert (json.loads(file.read_text()) if file.exists() else None) == kept
