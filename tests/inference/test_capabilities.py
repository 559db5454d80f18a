"""Capabilities of a checkpoint, by its settings."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.engines.llm_api.checkpoints import listing, llama, settings_for

from trtllm_truss.engines.inspection import Engine, inspect_config
from trtllm_truss.engines.llm_api.adapters import Adapter
from trtllm_truss.engines.llm_api.arguments import completed
from trtllm_truss.inference.capabilities import Capabilities

SQL = Adapter(8, frozenset({"attn_q"}))


def capabilities(version: str = "1.2.1", **metadata: Any) -> Capabilities:
    settings = settings_for(**metadata)
    described = inspect_config(llama(), listing())
    known = {field.name: getattr(described, field.name) for field in fields(described)}
    engine = Engine(folder=Path("m"), tokenizer_folder=Path("m"), **known)
    adapters = [SQL] * len(settings.lora_adapters)
    return Capabilities.for_engine(settings, completed(engine, settings, version, adapters), None)


def test_defaults() -> None:
    assert capabilities() == Capabilities(one_beam_width=True, biased_tokens=128256)


def test_adapters_are_numbered_in_order() -> None:
    found = capabilities(lora_adapters={"sql": "org/sql", "chat": "org/chat"})
    assert found.adapters
    assert found.adapter_ids == {"sql": 1, "chat": 2}


@pytest.mark.parametrize(
    ("version", "llm_args", "limit"),
    [
        ("1.2.1", {}, 0),
        ("1.2.1", {"sampler_type": "TorchSampler"}, 20),
        ("1.3.0", {}, 20),
        ("1.0.0", {}, 0),
    ],
)
def test_alternatives_depend_on_the_sampler(
    version: str, llm_args: dict[str, Any], limit: int
) -> None:
    assert capabilities(version, runtime={"llm_args": llm_args}).top_log_probs == limit


def test_guides_of_llm_args() -> None:
    found = capabilities(runtime={"llm_args": {"guided_decoding_backend": "llguidance"}})
    assert found.guides
