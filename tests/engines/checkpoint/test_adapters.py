"""LoRA adapters of a checkpoint: their configuration and their arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import listing, llama, settings_for
from tests.support.inspection import inspect_config

from trtllm_truss.engines.checkpoint.engine import CheckpointEngine, parse_adapter
from trtllm_truss.engines.cpu.engine import CpuEngine
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.kinds import with_settings
from trtllm_truss.engines.model_config import Adapter
from trtllm_truss.errors import ArtifactError, SettingsError
from trtllm_truss.settings.loading import Environment

SQL = Adapter(16, frozenset({"attn_q", "attn_v"}))
CHAT = Adapter(64, frozenset({"attn_q", "mlp_gate"}))
BOTH = {"lora_adapters": {"sql": "org/sql", "chat": "org/chat"}}


def config(**changes: Any) -> bytes:
    known = {"peft_type": "LORA", "r": 16, "target_modules": ["q_proj", "v_proj"]}
    return json.dumps({**known, **changes}).encode()


def test_a_configuration() -> None:
    assert parse_adapter(config()) == SQL
    assert parse_adapter(config(use_dora=False, modules_to_save=None)) == SQL


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (config(peft_type="IA3"), "peft_type 'IA3'"),
        (config(r=0), "the rank r 0"),
        (config(r=True), "the rank r True"),
        (config(use_dora=True), "sets use_dora"),
        (config(modules_to_save=["lm_head"]), "sets modules_to_save"),
        (config(target_modules=["q_proj", "c_attn"]), "changes c_attn; the LLM API applies"),
        (config(target_modules="all-linear"), "changes all-linear"),
        (config(target_modules=[]), "changes no modules"),
        (config(target_modules=[["q_proj"]]), "changes ['q_proj']"),
    ],
)
def test_adapters_that_are_not_applied(content: bytes, words: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        parse_adapter(content)
    assert words in caught.value.message


def arguments(**metadata: Any) -> Engine:
    engine = inspect_config(llama(), listing())
    return with_settings(engine, settings_for(**BOTH, **metadata), adapters=(SQL, CHAT))


def test_events_do_not_tell_adapters_apart() -> None:
    with pytest.raises(SettingsError, match="lora_adapters: events do not tell"):
        arguments().reporting_kv_events(Path("/run/events"))


def test_the_arguments_hold_all_adapters() -> None:
    engine = arguments()
    assert engine.takes_adapters
    assert engine.llm_args is not None
    assert engine.llm_args["lora_config"] == {
        "lora_target_modules": ["attn_q", "attn_v", "mlp_gate"],
        "max_lora_rank": 64,
        "max_loras": 2,
        "max_cpu_loras": 2,
    }
    fewer = arguments(runtime={"llm_args": {"lora_config": {"max_loras": 1}}}).llm_args
    assert fewer is not None
    assert fewer["lora_config"]["max_loras"] == 1
    assert fewer["lora_config"]["max_cpu_loras"] == 2


def test_without_adapters() -> None:
    engine = with_settings(inspect_config(llama(), listing()), settings_for())
    assert not engine.takes_adapters


def test_other_engines_take_none_from_the_settings() -> None:
    engine = CpuEngine(max_sequence_tokens=9, max_input_tokens=8, max_batch_size=1)
    with pytest.raises(SettingsError, match="lora_adapters is set, but the engine in org/model"):
        with_settings(engine, settings_for(**BOTH))


@pytest.mark.parametrize("name", ["sql", "sql@2"])
def test_a_folder_has_no_revision(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    settings = settings_for(lora_adapters={"sql": str(folder)})
    (adapter,) = CheckpointEngine.open_adapters(settings, Environment(None, {}))
    assert adapter.fetch() == folder
