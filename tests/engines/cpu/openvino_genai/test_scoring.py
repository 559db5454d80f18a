"""Log probabilities of alternatives and prompts, against the model computed by NumPy."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.token_model.backend_requests import (
    LIMITS,
    OUTPUTS,
    PROMPT,
    Caller,
    StartScheduler,
    request,
)
from tests.support.smollm2 import log_probs_of, write_small_smollm2

from trtllm_backends.openvino_genai import scheduler as scheduling
from trtllm_backends.openvino_genai import scoring
from trtllm_backends.openvino_genai.engine import EngineSettings, GenAiEngine
from trtllm_backends.openvino_genai.scheduler import Scheduler
from trtllm_truss.errors import InvalidRequest

TOLERANCE = 0.005
"""Of log probabilities: the engine computes in FP32, and GenAI saves norms in FP16."""
SCORES = ("cum_log_probs", "output_log_probs", "top_logprob_ids", "top_logprobs")
PROMPT_SCORES = ("prompt_logprobs", "prompt_top_ids", "prompt_top_logprobs")
LONG = [*range(300, 460)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_smollm2(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def small(folder: Path) -> GenAiEngine:
    return GenAiEngine(EngineSettings(folder, max_batch_size=8, max_beam_width=2))


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> GenAiEngine:
    folder = write_small_smollm2(tmp_path_factory.mktemp("half"), half=True)
    return GenAiEngine(EngineSettings(folder, max_batch_size=8))


_load = cache(scoring.load_scoring_model)


@pytest.fixture(autouse=True)
def _loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share the copies between the tests, whose schedulers would each load one."""
    monkeypatch.setattr(scoring, "load_scoring_model", _load)


@pytest.fixture
def scheduler(small: GenAiEngine, start_scheduler: StartScheduler) -> Scheduler:
    return start_scheduler(small)


def submit(scheduler: Scheduler, prompt: list[int], tokens: int, **inputs: Any) -> Caller:
    caller = Caller()
    inputs = {
        "outputs": (*OUTPUTS, *SCORES, *PROMPT_SCORES),
        "streaming": True,
        "return_log_probs": True,
        "num_top_logprobs": 5,
        **inputs,
    }
    scheduler.submit(request(prompt, tokens, **inputs), caller)
    return caller


def joined(caller: Caller, name: str) -> NDArray[Any]:
    """Return the values of all responses, by place."""
    parts = [outputs[name][0] for outputs in caller.responses if name in outputs]
    if name in ("top_logprob_ids", "top_logprobs"):
        return np.concatenate([part[0] for part in parts])
    return np.asarray(parts[-1])


def assert_likeliest(wanted: NDArray[np.float64], ids: Any, log_probs: Any) -> None:
    """Assert that ids and log probabilities are the highest ones of each place."""
    highest = -np.sort(-wanted, -1)[:, : ids.shape[1]]
    np.testing.assert_allclose(log_probs, highest, atol=TOLERANCE)
    np.testing.assert_allclose(np.take_along_axis(wanted, ids, -1), highest, atol=TOLERANCE)


@pytest.mark.parametrize("prompt", [PROMPT, LONG])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "runtime_top_k": 50, "seed": 7}])
def test_scores_are_the_models_own(
    half: GenAiEngine,
    start_scheduler: StartScheduler,
    prompt: list[int],
    sampling: dict[str, Any],
) -> None:
    seed = {"seed": np.array([sampling["seed"]], np.uint64)} if sampling else {}
    asked = {"return_prompt_logprobs": True, **sampling, **seed}
    caller = submit(start_scheduler(half), prompt, 24, **asked).wait()
    tokens = caller.tokens
    assert len(tokens) == 24
    wanted = log_probs_of(half.path, [*prompt, *tokens])[:-1]
    of_prompt, of_answer = wanted[: len(prompt) - 1], wanted[len(prompt) - 1 :]
    chosen = [row[token] for row, token in zip(of_answer, tokens, strict=True)]
    np.testing.assert_allclose(joined(caller, "output_log_probs")[0], chosen, atol=TOLERANCE)
    assert_likeliest(of_answer, joined(caller, "top_logprob_ids"), joined(caller, "top_logprobs"))
    chosen = [row[token] for row, token in zip(of_prompt, prompt[1:], strict=True)]
    np.testing.assert_allclose(joined(caller, "prompt_logprobs"), chosen, atol=TOLERANCE)
    assert_likeliest(
        of_prompt, joined(caller, "prompt_top_ids"), joined(caller, "prompt_top_logprobs")
    )
    assert sum("prompt_logprobs" in outputs for outputs in caller.responses) == 1
    assert "prompt_logprobs" in caller.responses[0] or not caller.responses[0]["output_ids"].size


def test_a_chosen_token_has_its_own_value_among_the_alternatives(scheduler: Scheduler) -> None:
    """lm_eval considers a token the likeliest one if both numbers are equal."""
    caller = submit(scheduler, LONG, 20, return_prompt_logprobs=True).wait()
    ids, values = joined(caller, "top_logprob_ids"), joined(caller, "top_logprobs")
    for token, log_prob, row, others in zip(
        caller.tokens, joined(caller, "output_log_probs")[0], ids, values, strict=True
    ):
        assert log_prob == dict(zip(row.tolist(), others.tolist(), strict=True))[token]


def test_scores_do_not_depend_on_other_requests(scheduler: Scheduler) -> None:
    alone = [submit(scheduler, prompt, 16, num_top_logprobs=20).wait() for prompt in (PROMPT, LONG)]
    plain = Caller()
    scheduler.submit(request(PROMPT, 40, streaming=True), plain)
    together = [submit(scheduler, prompt, 16, num_top_logprobs=20) for prompt in (PROMPT, LONG)]
    for before, after in zip(alone, together, strict=True):
        assert after.wait().tokens == before.tokens
        np.testing.assert_allclose(
            joined(after, "top_logprobs"), joined(before, "top_logprobs"), atol=1e-3
        )
    assert len(plain.wait().tokens) == 40


def test_an_end_and_a_stop_word_end_a_scored_answer(scheduler: Scheduler) -> None:
    tokens = submit(scheduler, PROMPT, 12).wait().tokens
    place = next(i for i in range(1, 12) if tokens.index(tokens[i]) == i)
    ended = submit(scheduler, PROMPT, 12, end_id=tokens[place]).wait()
    assert ended.tokens == tokens[:place]
    word = np.array([[[tokens[place]], [1]]], np.int32)
    stopped = submit(scheduler, PROMPT, 12, stop_words_list=word).wait()
    assert stopped.tokens == tokens[: place + 1]
    assert joined(stopped, "top_logprobs").shape == (place + 1, 5)
    asked = {"end_id": tokens[0], "min_tokens": 0, "return_prompt_logprobs": True}
    at_once = submit(scheduler, PROMPT, 12, **asked).wait()
    assert not at_once.tokens
    assert joined(at_once, "prompt_logprobs").shape == (len(PROMPT) - 1,)


def test_a_whole_answer_has_the_same_scores(scheduler: Scheduler) -> None:
    streamed = submit(scheduler, PROMPT, 40).wait()
    whole = submit(scheduler, PROMPT, 40, streaming=False, exclude_input_in_output=True).wait()
    assert len(whole.responses) == 1
    assert whole.tokens == streamed.tokens
    np.testing.assert_allclose(
        joined(whole, "top_logprobs"), joined(streamed, "top_logprobs"), atol=1e-3
    )


def test_the_copy_is_loaded_once_and_dropped_when_unused(
    small: GenAiEngine, start_scheduler: StartScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []
    load = scoring.load_scoring_model
    monkeypatch.setattr(
        scoring, "load_scoring_model", lambda path: (loads.append(path), load(path))[1]
    )
    scheduler = start_scheduler(small)
    callers = [submit(scheduler, PROMPT, 2) for _ in range(2)]
    assert [len(caller.wait().tokens) for caller in callers] == [2, 2]
    submit(scheduler, PROMPT, 2).wait()
    assert loads == [small.path]
    monkeypatch.setattr(scoring, "_KEPT_S", 0.0)
    submit(scheduler, PROMPT, 2).wait()
    before = len(loads)
    submit(scheduler, PROMPT, 2).wait()
    assert len(loads) == before + 1


def test_a_copy_that_does_not_fit_is_refused(
    small: GenAiEngine, start_scheduler: StartScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "_free_bytes", lambda: 1 << 20)
    monkeypatch.setattr(scoring, "load_scoring_model", _load.__wrapped__)
    refused = submit(start_scheduler(small), PROMPT, 2).wait()
    assert refused.caller_at_fault
    assert "a second copy of the model takes up to" in str(refused.error)
    assert "MiB of memory, and 1 MiB are free." in str(refused.error)


def test_scored_requests_hold_one_context_at_most(folder: Path) -> None:
    queue = scoring.Scoring(folder, 100, lambda: None)
    scored = request([1] * 30, 31, num_top_logprobs=1)
    plain = request([1] * 90, 10)
    assert queue.fits(scored, [])
    assert queue.fits(scored, [plain])
    assert not queue.fits(scored, [scored])
    assert queue.fits(request([1] * 20, 21, num_top_logprobs=1), [scored])


def test_a_long_prompt_shows_life_while_it_is_scored(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Truss kills an engine that is silent for `serving.hang_timeout_s`."""
    monkeypatch.setattr(scheduling, "HEARTBEAT_INTERVAL_S", 0.0)
    caller = submit(scheduler, LONG * 4, 2, return_prompt_logprobs=True).wait()
    empty = [not outputs["output_ids"].size for outputs in caller.responses]
    first = empty.index(False)
    assert first >= 3  # of five parts
    assert len(caller.tokens) == 2
    assert "prompt_logprobs" in caller.responses[first]


def test_parts_grow_and_shrink_with_their_duration(
    folder: Path,
) -> None:
    now = 0.0
    queue = scoring.Scoring(folder, 100, lambda: None, clock=lambda: now)
    parts: list[int] = []

    def compute(tokens: int) -> None:
        nonlocal now
        parts.append(tokens)
        now += (0.1, 0.01, 9.0, 0.2)[len(parts) - 1]

    for _ in range(4):
        queue.part(compute)
    assert parts == [32, 64, 128, 32]
    assert queue.is_due(others_run=False)
    assert not queue.is_due(others_run=True)
    now += 0.21
    assert queue.is_due(others_run=True)


def test_a_cancelled_request_that_waits_for_the_copy_ends(
    small: GenAiEngine, start_scheduler: StartScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "load_scoring_model", lambda path: math.nan)
    monkeypatch.setattr(scoring.Scoring, "_load", lambda *_: None)
    scheduler = start_scheduler(small)
    caller = submit(scheduler, PROMPT, 4, request_id="7")
    caller.wait_for_responses(1)  # an empty one meanwhile
    scheduler.stop_request("7")
    assert not caller.wait().tokens
    assert caller.error is None


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        ({"num_top_logprobs": 2}, "num_top_logprobs"),
        (
            {"return_prompt_logprobs": True, "outputs": (*OUTPUTS, *PROMPT_SCORES)},
            "return_prompt_logprobs",
        ),
    ],
)
def test_beams_are_not_scored(inputs: dict[str, Any], name: str) -> None:
    read = request(PROMPT, 4, beam_width=2, end_id=2, limits=LIMITS, **inputs)
    with pytest.raises(InvalidRequest, match=f"{name} is not supported with beam_width 2"):
        scoring.validate_scored(read)
