"""The requests of a start: one for each thing that the settings promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import listing, llama
from tests.fakes.triton import write_engine
from tests.support.inspection import inspect_config
from tests.support.lora import SQL

from trtllm_truss.engines.cpu.engine import CpuEngine
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.kinds import inspect_engine, with_settings
from trtllm_truss.serving.trials import trials_of
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.triton.client.client import Trial

PROMPT, END = 7, 2


def trials(engine: Engine, adapters: int = 0, **metadata: Any) -> list[Trial]:
    names = {f"lora{number}": "org/sql" for number in range(adapters)}
    content = {"engine_repository": "org/model", "lora_adapters": names, **metadata}
    settings = parse_settings({"model_metadata": content})
    completed = with_settings(engine, settings, "1.2.1", [SQL] * adapters)
    return [*trials_of(completed, settings, PROMPT, END)]


def checkpoint(**config: Any) -> Engine:
    return inspect_config(llama(**config), listing())


def settings_of(found: list[Trial]) -> list[str]:
    return [each.setting for each in found]


def test_the_plain_request_is_a_sampled_stream_of_several_steps() -> None:
    (plain,) = trials(checkpoint())
    request = plain.request
    assert (request.input_ids, request.max_tokens, request.streaming) == ([PROMPT], 3, True)
    assert request.sampling.temperature == 1
    assert request.end_id is None
    (short,) = trials(checkpoint(max_position_embeddings=2))
    assert short.request.max_tokens == 1


def test_a_checkpoint_with_beams_has_them_in_all_requests() -> None:
    beams, *adapters = trials(checkpoint(), 2, runtime={"max_beam_width": 2})
    assert beams.setting == "runtime.max_beam_width 2"
    assert settings_of(adapters) == ["lora_adapters.lora0", "lora_adapters.lora1"]
    for number, each in enumerate((beams, *adapters)):
        assert (each.request.beam_width, each.request.end_id) == (2, END)
        assert not each.request.streaming
        assert each.request.lora_task_id == (number or None)


def test_guides_are_tried_where_they_are_on() -> None:
    runtime: dict[str, Any] = {"guided_decoding_backend": "xgrammar"}
    assert settings_of(trials(checkpoint(), 1, runtime=runtime)) == [
        "",
        "lora_adapters.lora0",
        "runtime.guided_decoding_backend xgrammar",
    ]
    guided = trials(checkpoint(), runtime=runtime)[-1].request
    assert guided.guide is not None
    assert guided.end_id == END
    with_beams = trials(checkpoint(), runtime={**runtime, "max_beam_width": 2})
    assert settings_of(with_beams) == ["runtime.max_beam_width 2"]


@pytest.mark.parametrize(
    ("runtime", "wanted"),
    [({}, [""]), ({"max_beam_width": 3}, ["", "runtime.max_beam_width 3"])],
)
def test_an_engine_has_beams_in_a_request_of_their_own(
    tmp_path: Path, runtime: dict[str, Any], wanted: list[str]
) -> None:
    engine = inspect_engine(write_engine(tmp_path / "engine", limits={"max_beam_width": 4}))
    found = trials(engine, runtime=runtime)
    assert settings_of(found) == wanted
    assert found[-1].request.beam_width == runtime.get("max_beam_width", 1)


def test_the_cpu_engine_answers_one_stream() -> None:
    """Its guides are not a setting, and their masks take a second of CPU time."""
    engine = CpuEngine(max_sequence_tokens=9, max_input_tokens=8, max_batch_size=1)
    settings = parse_settings({"model_metadata": {"engine_repository": "org/model"}})
    assert engine.guided_decoding_backend(settings)
    assert settings_of([*trials_of(engine, settings, PROMPT, END)]) == [""]


def test_the_names_of_the_requests_differ() -> None:
    found = trials(checkpoint(), 3)
    assert len({each.request.request_id for each in found}) == 4
    assert found[1].condition == " with lora_adapters.lora0"
