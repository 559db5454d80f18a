"""Checkpoints on the Hub: checked by small files, then fetched without what is not loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.artifacts.test_config_first import tokenizer_json
from tests.engines.checkpoint.checkpoints import llama, write_checkpoint
from tests.fakes.hub.server import HubServer
from tests.support.lora import adapter_files, adapter_weights

from trtllm_truss.cli.check import CheckReport, examine
from trtllm_truss.engines.checkpoint.adapter_files import HEAD_BYTES
from trtllm_truss.engines.gpus import Gpu
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.errors import ArtifactError, SettingsError
from trtllm_truss.serving.preparation import ResolvedEngine, resolve_engine, supervised_limits
from trtllm_truss.settings.loading import Environment, parse_settings

H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * 10**9, 79 * 10**9, (9, 0), "590.44.01")
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def resolved(host: HostInfo | None = None, **metadata: Any) -> ResolvedEngine:
    settings = parse_settings({"model_metadata": {"engine_repository": "org/model", **metadata}})
    return resolve_engine(settings, Environment("hf_token", {}), host or HostInfo())


@pytest.fixture(autouse=True)
def repository(hub: HubServer, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint")
    hub.add_token("hf_token")
    hub.add(
        "org/model",
        {
            **{file.name: file.read_bytes() for file in folder.iterdir()},
            "tokenizer.json": tokenizer_json(),
            "tokenizer_config.json": b"{}",
            "pytorch_model.bin": b"x",
            "consolidated.safetensors": b"x",
            "original/consolidated.00.pth": b"x",
            "modeling_own.py": b"x",
            "README.md": b"x",
        },
    )


def change(hub: HubServer, files: dict[str, bytes], *removed: str) -> None:
    hub.repositories["org/model"].commit(files, removed=removed)


@pytest.mark.parametrize(("trust", "code"), [(False, []), (True, ["modeling_own.py"])])
def test_only_what_is_loaded_is_fetched(hub: HubServer, trust: bool, code: list[str]) -> None:
    found = resolved(HostInfo(gpus=[H100]), trust_remote_code=trust)
    names = sorted(path.name for path in found.engine.folder.rglob("*"))
    assert names == sorted(
        [
            *("config.json", "generation_config.json", "model.safetensors.index.json", *SHARDS),
            *("tokenizer.json", "tokenizer_config.json", *code),
        ]
    )
    assert found.tokenizer_folder == found.engine.folder
    assert found.engine.llm_args is not None
    assert found.capacity is not None
    assert found.capacity.sequence_tokens == 32_768


def test_the_same_repository_as_tokenizer(hub: HubServer) -> None:
    found = resolved(tokenizer_repository="org/model")
    assert found.tokenizer_folder == found.engine.folder
    assert not hub.asked_for("*.bin")


@pytest.mark.parametrize(
    ("config", "metadata", "host", "part"),
    [
        ({"architectures": ["PhiForCausalLM"]}, {}, HostInfo(), "has no such architecture"),
        ({"quantization_config": {"quant_method": "awq"}}, {}, HostInfo(), "AutoAWQ"),
        ({}, {"tensor_parallelism": 3}, HostInfo(), "32 attention heads"),
        ({}, {}, HostInfo(runtime_version="0.21.0"), "served from 1.0 on"),
        ({}, {"tensor_parallelism": 2}, HostInfo(gpus=[H100]), "1 are visible here"),
        ({}, {"runtime": {"instance_count": 2}}, HostInfo(), "several engines on one GPU"),
        (
            {"num_hidden_layers": 4000},
            {"runtime": {"llm_args": {"max_seq_len": 131072}}},
            HostInfo(gpus=[H100]),
            "fewer than one sequence of 131,072",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit(
    hub: HubServer, config: Any, metadata: dict[str, Any], host: HostInfo, part: str
) -> None:
    change(hub, {"config.json": json.dumps(llama(**config)).encode()})
    with pytest.raises(SettingsError, match=part):
        resolved(host, **metadata)
    assert not hub.asked_for("*.safetensors", "GET")


def test_a_missing_shard(hub: HubServer) -> None:
    change(hub, {}, SHARDS[1])
    with pytest.raises(ArtifactError, match=rf"names {SHARDS[1]}, which the repository lacks"):
        resolved()
    assert not hub.asked_for("*.safetensors", "GET")


def test_the_start_deadline_grows_with_the_weights() -> None:
    settings = parse_settings({"model_metadata": {"engine_repository": "org/model"}})
    engine = resolved().engine
    assert supervised_limits(settings.serving, engine).start_timeout_s == pytest.approx(1500)
    assert engine.weights is not None
    object.__setattr__(engine.weights, "total_bytes", 140 * 10**9)
    assert supervised_limits(settings.serving, engine).start_timeout_s == 1500 + 700


def check(tmp_path: Path, accelerator: str = "H100", **metadata: Any) -> CheckReport:
    content = {
        "base_image": {"image": "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"},
        "resources": {"accelerator": accelerator},
        "model_metadata": {"engine_repository": "org/model", **metadata},
    }
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(content))
    return examine(tmp_path, file)


def test_check_needs_no_weights(hub: HubServer, tmp_path: Path) -> None:
    report = check(tmp_path)
    assert report.status == 0
    assert "LlamaForCausalLM: TensorRT-LLM 1.0 on (image 25.09)" in report.facts
    assert (
        "context: 32,768 of the model's 131,072 tokens (runtime.llm_args.max_seq_len)"
        in report.facts
    )
    assert any(fact.startswith("70.6 GB of KV cache per GPU") for fact in report.facts)
    assert not hub.asked_for("*.safetensors", "GET")


def test_check_without_a_gpu_takes_the_one_of_config_yaml(hub: HubServer, tmp_path: Path) -> None:
    change(hub, {"config.json": json.dumps(llama(num_hidden_layers=4000)).encode()})
    report = check(tmp_path, runtime={"llm_args": {"max_seq_len": 131072}})
    assert report.status == 3
    assert [found.code for found in report.findings if found.severity.value == "error"] == [
        "kv_cache_too_small"
    ]


WEIGHTS = "adapter_model.safetensors"
ADAPTER = {**adapter_files(), "adapter_model.bin": b"x", "README.md": b"x"}


def test_adapters_are_fetched_with_the_checkpoint(hub: HubServer) -> None:
    hub.add("org/sql", ADAPTER)
    found = resolved(lora_adapters={"sql": "org/sql"})
    assert found.engine.takes_adapters
    assert [*found.adapters] == ["sql"]
    assert sorted(file.name for file in found.adapters["sql"].iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_an_adapter_has_a_revision(hub: HubServer) -> None:
    repository = hub.add("org/sql", ADAPTER)
    first = repository.revisions["main"]
    repository.commit({WEIGHTS: adapter_weights(rank=4)})
    found = resolved(lora_adapters={"old": f"org/sql@{first}", "new": "org/sql"})
    weights = {name: (folder / WEIGHTS).read_bytes() for name, folder in found.adapters.items()}
    assert weights == {"old": ADAPTER[WEIGHTS], "new": adapter_weights(rank=4)}


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ({**ADAPTER, WEIGHTS: b""}, "adapter_model.safetensors is missing or"),
        ({"adapter_model.bin": b"x"}, "adapter_config.json and adapter_model.safetensors is"),
        ({**ADAPTER, "adapter_config.json": b"{}"}, "has peft_type null"),
    ],
)
def test_an_adapter_that_cannot_be_applied(
    hub: HubServer, tmp_path: Path, files: dict[str, bytes], part: str
) -> None:
    hub.add("org/sql", files)
    with pytest.raises(ArtifactError, match=rf"^lora_adapters.sql 'org/sql': .*{part}"):
        resolved(lora_adapters={"sql": "org/sql"})
    assert not hub.asked_for("*.safetensors", "GET")
    report = check(tmp_path, lora_adapters={"sql": "org/sql"})
    assert report.status == 3


def test_check_reads_the_beginning_of_the_weights_by_one_request(
    hub: HubServer, tmp_path: Path
) -> None:
    large = {**ADAPTER, WEIGHTS: adapter_weights(rank=64, layers=range(2))}
    assert len(large[WEIGHTS]) > 2 * HEAD_BYTES
    hub.add("org/sql", large)
    hub.forget()
    assert check(tmp_path, lora_adapters={"sql": "org/sql"}).status == 0
    (request,) = [each for each in hub.asked_for(f"*{WEIGHTS}", "GET") if each.status != 302]
    assert (request.start, request.last, request.sent) == (0, HEAD_BYTES - 1, HEAD_BYTES)


def test_the_beginning_of_the_whole_answer_of_a_server_without_ranges(
    hub: HubServer, tmp_path: Path
) -> None:
    hub.knows_no_ranges = True
    hub.add("org/sql", {**ADAPTER, WEIGHTS: adapter_weights(rank=64)})
    assert check(tmp_path, lora_adapters={"sql": "org/sql"}).status == 0


def test_a_weight_that_no_release_applies_is_named_before_the_download(
    hub: HubServer, tmp_path: Path
) -> None:
    weights = adapter_weights(("self_attn.q_proj", "self_attn.q_a_proj"))
    hub.add("org/sql", {**ADAPTER, WEIGHTS: weights})
    report = check(tmp_path, lora_adapters={"sql": "org/sql"})
    (found,) = [each for each in report.findings if each.severity.value == "error"]
    assert found.code == "adapter_module"
    assert found.message.startswith(
        "lora_adapters.sql: adapter_model.safetensors holds base_model.model.model.layers.0."
        "self_attn.q_a_proj.lora_A.weight for q_a_proj, which the LLM API does not adapt"
    )
    assert report.status == 3
    with pytest.raises(SettingsError, match="for q_a_proj, which the LLM API does not adapt"):
        resolved(lora_adapters={"sql": "org/sql"})
    assert not hub.asked_for("*model-0000*", "GET")


def test_a_damaged_adapter_is_named(hub: HubServer) -> None:
    hub.add("org/sql", {**ADAPTER, WEIGHTS: ADAPTER[WEIGHTS][:-9]})
    with pytest.raises(ArtifactError, match=r"^lora_adapters.sql 'org/sql': .* is damaged: its te"):
        resolved(lora_adapters={"sql": "org/sql"})


def test_an_adapter_that_is_here_is_read_here(hub: HubServer, tmp_path: Path) -> None:
    hub.add("org/sql", ADAPTER)
    resolved(lora_adapters={"sql": "org/sql"})
    hub.forget()
    assert check(tmp_path, lora_adapters={"sql": "org/sql"}).status == 0
    assert not hub.asked_for(f"*{WEIGHTS}")
