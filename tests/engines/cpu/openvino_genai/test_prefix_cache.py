"""The prefix cache of the real engine, as reported to its requests."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from tests.backends.token_model.backend_requests import OUTPUTS, Caller, StartScheduler, request
from tests.support.waiting import settles

from trtllm_backends.openvino_genai.engine import PREFILL_TOKENS, EngineSettings, GenAiEngine
from trtllm_backends.openvino_genai.scheduler import Scheduler

REPORTED = (*OUTPUTS, "cached_tokens")
_seeds = itertools.count(1)


def new_prompt(length: int) -> list[int]:
    """Return ids with a prefix that no other prompt has."""
    generator = np.random.default_rng(next(_seeds))
    return generator.integers(100, 8000, length).tolist()


def ask(scheduler: Scheduler, prompt: list[int], output_len: int = 4) -> tuple[int, list[int]]:
    """Return the cached tokens reported by the first response, and the answer."""
    caller = Caller()
    scheduler.submit(request(prompt, output_len, outputs=REPORTED, streaming=True), caller)
    first, *others = caller.wait().responses
    assert not any("cached_tokens" in response for response in others)
    return int(first["cached_tokens"].item()), caller.tokens


def steps_to_read(engine: GenAiEngine, prompt: list[int]) -> int:
    """Return the steps until the first token; each reads so many tokens of the prompt."""
    handle = engine.add(request(prompt, 1))
    steps = 0
    while not handle.can_read():
        engine.step()
        steps += 1
    handle.read()
    engine.rest()
    return steps


@pytest.mark.parametrize("length", [20, 64, 100, PREFILL_TOKENS + 50])
def test_two_turns_of_a_conversation(scheduler: Scheduler, length: int) -> None:
    prompt = new_prompt(length)
    cached, answer = ask(scheduler, prompt, 5)
    assert cached == 0
    turn = [*prompt, *answer, *new_prompt(30)]
    # The last token of an answer was never an input.
    assert ask(scheduler, turn)[0] == length + 4


def test_a_prompt_that_differs_within_a_block(scheduler: Scheduler) -> None:
    prompt = new_prompt(100)
    ask(scheduler, prompt)
    other = [*prompt[:70], *new_prompt(30)]
    assert ask(scheduler, other)[0] == 64
    assert ask(scheduler, new_prompt(100))[0] == 0


def test_what_is_cached_is_not_computed(engine: GenAiEngine) -> None:
    prompt = new_prompt(4 * PREFILL_TOKENS)
    assert engine.cached_tokens(np.array(prompt)) == 0
    assert steps_to_read(engine, prompt) >= 4
    assert engine.cached_tokens(np.array(prompt)) > 3 * PREFILL_TOKENS
    assert steps_to_read(engine, prompt) == 1


def test_nothing_is_cached_without_the_cache(
    model_folder: Path, start_scheduler: StartScheduler
) -> None:
    engine = GenAiEngine(EngineSettings(model_folder, max_batch_size=2, prefix_caching=False))
    scheduler = start_scheduler(engine, prefix_caching=False)
    prompt = new_prompt(64)
    assert [ask(scheduler, prompt)[0] for _ in range(2)] == [0, 0]


def test_a_request_that_begins_beside_another_is_not_told(scheduler: Scheduler) -> None:
    long, second = Caller(), Caller()
    scheduler.submit(request(new_prompt(8), 4000, request_id="long", streaming=True), long)
    long.wait_for_responses(2)
    given = request(new_prompt(40), 4, outputs=REPORTED, streaming=True)
    scheduler.submit(given, second)
    assert "cached_tokens" not in second.wait().responses[0]
    assert second.error is None
    scheduler.stop_request("long")
    long.wait()


@pytest.mark.parametrize("outputs", [REPORTED, OUTPUTS], ids=["told", "not told"])
def test_of_a_long_prompt_only_what_is_not_cached_is_read_ahead(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, outputs: tuple[str, ...]
) -> None:
    """Each part of the second turn of a conversation would take a step."""
    engine, read = scheduler._engine, []
    read_ahead = engine.read_ahead

    def recorded(prompt: np.ndarray) -> object:
        read.append(len(prompt))
        return read_ahead(prompt)

    monkeypatch.setattr(engine, "read_ahead", recorded)

    def turn(prompt: list[int]) -> list[int]:
        read.clear()
        caller = Caller()
        scheduler.submit(request(prompt, 2, outputs=outputs, streaming=True), caller)
        caller.wait()
        assert caller.error is None
        return [*read]

    prompt = new_prompt(4 * PREFILL_TOKENS)
    assert turn(prompt)
    assert turn([*prompt, *new_prompt(10)]) == []
    parts = turn([*prompt, *new_prompt(4 * PREFILL_TOKENS)])
    assert parts
    assert min(parts) > 4 * PREFILL_TOKENS


def test_what_a_long_prompt_left_in_the_cache_itself_does_not_count(scheduler: Scheduler) -> None:
    """Its first part was read beside another request, and the last one was not."""
    other, long = Caller(), Caller()
    scheduler.submit(request(new_prompt(8), 4000, request_id="other", streaming=True), other)
    other.wait_for_responses(1)
    prompt = new_prompt(8 * PREFILL_TOKENS)
    scheduler.submit(request(prompt, 2, outputs=REPORTED, streaming=True), long)
    assert settles(lambda: scheduler._long_prompts._read_tokens > 0)
    scheduler.stop_request("other")
    assert "cached_tokens" not in long.wait().responses[0]
    assert long.error is None
    other.wait()
