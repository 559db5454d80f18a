"""Concurrent requests to the real engine and model."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.token_model.backend_requests import (
    END_ID,
    OUTPUTS,
    PROMPT,
    Caller,
    StartScheduler,
    request,
    word_list,
)
from tests.support.waiting import PATIENCE_S

from trtllm_backends.openvino_genai import scheduler as scheduling
from trtllm_backends.openvino_genai.engine import EngineSettings, GenAiEngine
from trtllm_backends.openvino_genai.scheduler import Scheduler
from trtllm_backends.token_model.responses import RunningRequest

LOG_PROBS = (*OUTPUTS, "cum_log_probs", "output_log_probs")
HAS_AVX512 = "avx512f" in Path("/proc/cpuinfo").read_text()


def submit(scheduler: Scheduler, *args: Any, **inputs: Any) -> Caller:
    caller = Caller()
    scheduler.submit(request(*args, **inputs), caller)
    return caller


def run(scheduler: Scheduler, *args: Any, **inputs: Any) -> Caller:
    return submit(scheduler, *args, **inputs).wait()


def test_a_stream_has_one_response_a_token_and_ends_with_the_last(scheduler: Scheduler) -> None:
    caller = run(scheduler, PROMPT, 6, streaming=True)

    assert [outputs["output_ids"].shape for outputs in caller.responses] == [(1, 1, 1)] * 6
    assert all(outputs["sequence_length"].tolist() == [[1]] for outputs in caller.responses)
    assert caller.finals == 1


def test_tokens_of_many_streams_are_collected_and_those_of_two_are_not(
    engine: GenAiEngine, start_scheduler: StartScheduler
) -> None:
    scheduler = start_scheduler(engine, response_interval_s=600.0)

    def shapes(streams: int) -> list[list[int]]:
        callers = [submit(scheduler, PROMPT, 6, streaming=True) for _ in range(streams)]
        return [[r["output_ids"].shape[-1] for r in one.wait().responses] for one in callers]

    assert shapes(1) == [[1] * 6]
    assert shapes(2) == [[1] * 6] * 2
    assert shapes(8) == [[1, 5]] * 8


@pytest.mark.parametrize(
    ("streams", "step_s", "events"),
    [
        pytest.param(1, 0.016, 64, id="1: each token"),
        pytest.param(2, 0.018, 64, id="2: each token"),
        pytest.param(3, 0.021, 64, id="3: a step takes longer than the interval"),
        pytest.param(8, 0.026, 14, id="8: five tokens"),
        pytest.param(64, 0.14, 33, id="64: two tokens"),
    ],
)
def test_events_of_64_tokens(streams: int, step_s: float, events: int) -> None:
    """In virtual time, with steps as long as on two idle cores."""
    interval_s = scheduling.response_interval_s(streams, EngineSettings.response_interval_s)
    now = 0.0
    caller = Caller()
    stream = RunningRequest(request(PROMPT, 64, streaming=True), caller, clock=lambda: now)
    for token in range(64):
        now += step_s
        stream.add(100 + token)
        if token == 63 or stream.is_due(interval_s):
            stream.send(final=token == 63)

    assert len(caller.responses) == events
    assert sum(outputs["output_ids"].shape[-1] for outputs in caller.responses) == 64


def test_an_idle_engine_gathers_simultaneous_requests(
    engine: GenAiEngine, start_scheduler: StartScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "_GATHER_S", 3.0)
    monkeypatch.setattr(scheduling, "_GATHER_LIMIT_S", 3.0)
    scheduler = start_scheduler(engine)
    first = submit(scheduler, PROMPT, 1)
    time.sleep(0.2)
    assert not first.responses
    second = submit(scheduler, PROMPT, 1)
    assert first.wait().tokens == second.wait().tokens


def test_an_answer_in_one_piece_repeats_the_prompt(scheduler: Scheduler) -> None:
    streamed = run(scheduler, PROMPT, 6, streaming=True).tokens
    caller = run(scheduler, PROMPT, 6)

    assert len(caller.responses) == 1
    assert caller.tokens == PROMPT + streamed
    assert caller.responses[0]["sequence_length"].tolist() == [[11]]
    assert run(scheduler, PROMPT, 6, exclude_input_in_output=True).tokens == streamed


def test_the_end_token_is_left_out(scheduler: Scheduler) -> None:
    endless = run(scheduler, PROMPT, 12, streaming=True).tokens
    end_id = endless[6]
    expected = endless[: endless.index(end_id)]
    ended = run(scheduler, PROMPT, 12, streaming=True, end_id=end_id)

    assert ended.tokens == expected
    assert ended.responses[-1]["output_ids"].shape == (1, 1, 0)
    assert ended.responses[-1]["sequence_length"].tolist() == [[0]]
    assert run(scheduler, PROMPT, 12, end_id=end_id).tokens == PROMPT + expected


def test_min_tokens_puts_the_end_off(scheduler: Scheduler) -> None:
    endless = run(scheduler, PROMPT, 12, streaming=True).tokens
    put_off = run(scheduler, PROMPT, 12, streaming=True, end_id=endless[2], min_tokens=9).tokens

    assert len(put_off) >= 9
    assert endless[2] not in put_off


def test_a_stop_word_ends_the_answer_and_is_part_of_it(scheduler: Scheduler) -> None:
    unstopped = run(scheduler, PROMPT, 12, streaming=True).tokens
    word = unstopped[4:6]
    stopped = run(scheduler, PROMPT, 12, streaming=True, stop_words_list=word_list([1, 1], word))

    assert stopped.tokens == unstopped[:6]
    assert stopped.responses[-1]["output_ids"].tolist() == [[[word[-1]]]]
    across = word_list([PROMPT[-1], unstopped[0]])
    assert (
        run(scheduler, PROMPT, 12, streaming=True, stop_words_list=across).tokens == (unstopped[:1])
    )


def test_log_probabilities_come_in_full_with_every_response(scheduler: Scheduler) -> None:
    inputs = {"streaming": True, "return_log_probs": True}
    caller = run(scheduler, PROMPT, 4, outputs=LOG_PROBS, **inputs)

    lengths = [outputs["output_log_probs"].shape for outputs in caller.responses]
    assert lengths == [(1, 1, n) for n in (1, 2, 3, 4)]
    last = caller.responses[-1]
    assert last["cum_log_probs"] == pytest.approx(last["output_log_probs"].sum())
    assert (last["output_log_probs"] < 0).all()


def test_token_counts(scheduler: Scheduler) -> None:
    outputs = (*OUTPUTS, "num_input_tokens", "num_output_tokens", "batch_index", "sequence_index")
    wanted = {"return_num_input_tokens": True, "return_num_output_tokens": True}
    (response,) = run(scheduler, PROMPT, 4, outputs=outputs, **wanted).responses

    counts = {name: response[name].tolist() for name in response.keys() - set(OUTPUTS)}
    assert counts == {
        "num_input_tokens": [[5]],
        "num_output_tokens": [[4]],
        "batch_index": [[0]],
        "sequence_index": [[0]],
    }


def test_beam_search(scheduler: Scheduler) -> None:
    inputs = {"beam_width": 3, "return_log_probs": True, "exclude_input_in_output": True}
    (response,) = run(scheduler, PROMPT, 5, outputs=LOG_PROBS, end_id=END_ID, **inputs).responses

    assert response["output_ids"].shape == (1, 3, 5)
    assert response["sequence_length"].tolist() == [[5, 5, 5]]
    scores = response["cum_log_probs"][0].tolist()
    assert scores == sorted(scores, reverse=True)
    assert len({tuple(beam) for beam in response["output_ids"][0].tolist()}) == 3


def test_beams_end_after_their_first_stop_word(scheduler: Scheduler) -> None:
    inputs = {"beam_width": 2, "exclude_input_in_output": True, "end_id": 0}
    (whole,) = run(scheduler, PROMPT, 6, **inputs).responses
    best = whole["output_ids"][0, 0].tolist()
    stop_words = word_list(best[1:3])
    (response,) = run(scheduler, PROMPT, 6, stop_words_list=stop_words, **inputs).responses

    length = response["sequence_length"][0, 0]
    assert response["output_ids"][0, 0, :length].tolist() == best[:3]
    assert (response["output_ids"][0, 0, length:] == -1).all()


@pytest.mark.parametrize("penalty", [{"repetition_penalty": 1.8}, {"frequency_penalty": 2.0}])
def test_penalties_are_honoured(scheduler: Scheduler, penalty: dict[str, float]) -> None:
    plain = run(scheduler, PROMPT, 24, streaming=True).tokens

    assert run(scheduler, PROMPT, 24, streaming=True, **penalty).tokens != plain


def test_a_seed_is_reproducible_under_load(scheduler: Scheduler) -> None:
    def sample(seed: int) -> Caller:
        inputs = {"streaming": True, "runtime_top_k": 50, "seed": np.array([seed], np.uint64)}
        return submit(scheduler, PROMPT, 16, **inputs)

    alone = {seed: sample(seed).wait().tokens for seed in (7, 8, 7 + 2**40)}
    assert len({tuple(tokens) for tokens in alone.values()}) == 3
    callers = []
    for seed in [*alone] * 2:
        others = sample(seed + 100)
        others.wait_for_responses(2)
        callers.append((seed, sample(seed)))
    assert [caller.wait().tokens for _, caller in callers] == [alone[s] for s, _ in callers]


def test_a_greedy_answer_is_the_same_alone_and_beside_others(
    start_scheduler: StartScheduler, model_folder: Path
) -> None:
    """With prompts of different lengths, of which one fills several steps.

    The log probabilities are equal to the last bit where the CPU has AVX-512. With AVX2 alone a
    step of many tokens rounds differently: two to four of these prompts at once change no bit,
    seven change up to 2e-5 (measured on an AMD EPYC).
    """
    engine = GenAiEngine(EngineSettings(model_folder, max_batch_size=8, prefix_caching=False))
    scheduler = start_scheduler(engine, prefix_caching=False)
    prompts = [[*range(300 + i, 340 + i, 7), *PROMPT * (1 + i)] for i in range(7)]
    prompts.append([*range(900, 1300)])

    def ask(prompt: list[int]) -> Caller:
        return submit(scheduler, prompt, 16, outputs=LOG_PROBS, return_log_probs=True)

    def read(caller: Caller) -> tuple[list[int], list[float]]:
        (answer,) = caller.wait().responses
        return answer["output_ids"].ravel().tolist(), answer["output_log_probs"].ravel().tolist()

    alone = [read(ask(prompt)) for prompt in prompts]
    beside = [read(caller) for caller in [ask(prompt) for prompt in prompts]]

    for (ids, log_probs), (ids_alone, log_probs_alone) in zip(beside, alone, strict=True):
        assert ids == ids_alone
        if HAS_AVX512:
            assert log_probs == log_probs_alone
        assert log_probs == pytest.approx(log_probs_alone, abs=1e-4)


def test_more_requests_than_places(engine: GenAiEngine, start_scheduler: StartScheduler) -> None:
    scheduler = start_scheduler(engine, max_batch_size=2)
    callers = [submit(scheduler, [300 + i, *PROMPT], 8, streaming=True) for i in range(6)]

    assert [len(caller.wait().tokens) for caller in callers] == [8] * 6


def test_requests_join_while_others_run(scheduler: Scheduler) -> None:
    long = submit(scheduler, PROMPT, 4000, streaming=True)
    long.wait_for_responses(3)
    run(scheduler, PROMPT, 5)

    assert long.finals == 0
    long.cancelled = True
    long.wait()


def test_a_cancelled_request_ends_soon_with_an_empty_response(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caller = submit(scheduler, PROMPT, 4000, streaming=True, request_id="gone")
    caller.wait_for_responses(3)
    other = submit(scheduler, PROMPT, 10, streaming=True)
    caller.cancelled = True
    caller.wait()

    assert len(caller.tokens) < 4000
    assert caller.responses[-1]["output_ids"].shape == (1, 1, 0)
    assert f"stopped id=gone after={len(caller.tokens)}" in caplog.messages
    assert len(other.wait().tokens) == 10


def test_a_waiting_request_can_be_cancelled(
    engine: GenAiEngine, start_scheduler: StartScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    scheduler = start_scheduler(engine, max_batch_size=1)
    running = submit(scheduler, PROMPT, 4000, streaming=True)
    running.wait_for_responses(1)
    waiting = submit(scheduler, PROMPT, 10, request_id="queued")
    waiting.cancelled = True
    waiting.wait()

    assert waiting.tokens == []
    assert "stopped id=queued after=0" in caplog.messages
    assert running.finals == 0
    running.cancelled = True
    running.wait()


def test_identical_requests_are_distinguished(
    engine: GenAiEngine, start_scheduler: StartScheduler
) -> None:
    scheduler = start_scheduler(engine, max_batch_size=1)
    running = submit(scheduler, PROMPT, 4000, streaming=True)
    first, second = (submit(scheduler, PROMPT, 4) for _ in range(2))
    second.cancelled = True
    second.wait()
    running.cancelled = True

    assert len(first.wait().tokens) == len(PROMPT) + 4


def test_stop_by_request_id(scheduler: Scheduler) -> None:
    caller = submit(scheduler, PROMPT, 4000, streaming=True, request_id="a")
    other = submit(scheduler, PROMPT, 30, streaming=True, request_id="b")
    caller.wait_for_responses(2)
    scheduler.stop_request("nobody")
    scheduler.stop_request("a")

    assert len(caller.wait().tokens) < 4000
    assert len(other.wait().tokens) == 30


@pytest.mark.parametrize("evict", [False, True])
def test_a_full_kv_cache(
    small_engine: GenAiEngine, start_scheduler: StartScheduler, evict: bool
) -> None:
    """Serve all requests under both policies, each with more than half the cache."""
    scheduler = start_scheduler(small_engine, evict=evict)
    limits = small_engine.limits
    callers = [
        submit(scheduler, [300 + i, *PROMPT], 70, limits=limits, streaming=True) for i in range(4)
    ]

    assert [len(caller.wait().tokens) for caller in callers] == [70] * 4


def test_a_request_that_fills_the_kv_cache_to_the_last_token(
    small_engine: GenAiEngine, start_scheduler: StartScheduler
) -> None:
    scheduler = start_scheduler(small_engine)
    most = 128 - len(PROMPT) + 1
    limits = small_engine.limits

    assert len(run(scheduler, PROMPT, most, limits=limits, streaming=True).tokens) == most
    inputs = {"limits": limits, "beam_width": 4, "end_id": 0}
    (beams,) = run(scheduler, PROMPT, 32 - len(PROMPT) + 1, **inputs).responses
    assert beams["output_ids"].shape == (1, 4, 33)


def test_a_prompt_longer_than_one_step_reads(scheduler: Scheduler) -> None:
    long = submit(scheduler, [300 + i for i in range(1000)], 3, streaming=True)
    short = submit(scheduler, PROMPT, 3, streaming=True)

    assert len(long.wait().tokens) == len(short.wait().tokens) == 3


LONG_PROMPT = [300 + i for i in range(4000)]


def test_a_long_prompt_lets_later_requests_pass(scheduler: Scheduler) -> None:
    long = submit(scheduler, LONG_PROMPT, 3, streaming=True)
    shorts = [run(scheduler, PROMPT, 3, streaming=True) for _ in range(3)]

    assert not long.responses
    assert len(long.wait(2 * PATIENCE_S).tokens) == len(shorts[0].tokens) == 3


def test_a_long_prompt_is_read_while_others_run(scheduler: Scheduler) -> None:
    endless = submit(scheduler, PROMPT, 8000, streaming=True, request_id="endless")
    assert len(run(scheduler, LONG_PROMPT[:600], 3).tokens) == 603
    assert not endless.finals
    scheduler.stop_request("endless")
    endless.wait()


def test_a_long_prompt_can_be_cancelled_while_it_is_read(scheduler: Scheduler) -> None:
    long = submit(scheduler, LONG_PROMPT[::-1], 3, streaming=True, request_id="long")
    run(scheduler, PROMPT, 1)
    scheduler.stop_request("long")

    assert long.wait().tokens == []
    assert len(run(scheduler, PROMPT, 3, streaming=True).tokens) == 3


def test_closing_fails_what_still_runs(engine: GenAiEngine, model_folder: Path) -> None:
    settings = EngineSettings(model_folder, max_batch_size=1)
    scheduler = Scheduler(engine, settings, on_death=lambda: None)
    scheduler.start()
    running = submit(scheduler, PROMPT, 4000, streaming=True)
    waiting = submit(scheduler, PROMPT, 4000)
    running.wait_for_responses(1)
    scheduler.close()

    for caller in (running, waiting):
        assert caller.error == "The engine is shutting down."
        assert caller.caller_at_fault is False
        assert caller.finals == 1


class NotingEngine:
    """The real engine, recording whether a step has a companion."""

    def __init__(self, engine: GenAiEngine) -> None:
        self._engine = engine
        self.accompanied: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self, *, accompanied: bool) -> None:
        self.accompanied.append(accompanied)
        self._engine.step(accompanied=accompanied)


@pytest.mark.parametrize(
    ("is_seeded", "sampling", "is_accompanied"),
    [(True, {"runtime_top_k": 50}, True), (False, {"runtime_top_k": 50}, False), (False, {}, True)],
    ids=["of a seed", "of no known seed", "greedy"],
)
def test_only_an_answer_that_can_be_asked_for_again_has_a_companion(
    engine: GenAiEngine,
    start_scheduler: StartScheduler,
    is_seeded: bool,
    sampling: dict[str, int],
    is_accompanied: bool,
) -> None:
    noting = NotingEngine(engine)
    scheduler = start_scheduler(noting)  # type: ignore[arg-type]
    caller = Caller()
    inputs = {name: np.array([[value]], np.int32) for name, value in sampling.items()}
    scheduler.submit(request(is_seeded=is_seeded, **inputs), caller)
    assert caller.wait().error is None
    assert {*noting.accompanied} == {is_accompanied}


class BreakingEngine:
    """The real engine, with failing steps."""

    def __init__(self, engine: GenAiEngine, failures: int, *, loads: bool = True) -> None:
        self._engine = engine
        self._failures = failures
        self._loads = loads
        self.limits = engine.limits
        self.path = engine.path
        self.add = engine.add
        self.read_ahead = engine.read_ahead
        self.cached_tokens = engine.cached_tokens
        self.rest = engine.rest
        self.keeps_prompts = engine.keeps_prompts
        self.kv_blocks = engine.kv_blocks

    def step(self, *, accompanied: bool) -> None:
        self._engine.step(accompanied=accompanied)
        if self._failures:
            self._failures -= 1
            raise RuntimeError("out of luck")

    def reload(self) -> None:
        if not self._loads:
            raise RuntimeError("no such file")


def test_a_failed_step_fails_its_requests_only(
    engine: GenAiEngine, start_scheduler: StartScheduler
) -> None:
    scheduler = start_scheduler(BreakingEngine(engine, failures=1))
    failed = run(scheduler, PROMPT, 4)

    assert failed.error == "The engine failed: out of luck"
    assert failed.caller_at_fault is False
    assert run(scheduler, PROMPT, 4).error is None


def test_a_failed_step_fails_the_prompt_that_was_read(
    engine: GenAiEngine, start_scheduler: StartScheduler
) -> None:
    scheduler = start_scheduler(BreakingEngine(engine, failures=1))
    assert run(scheduler, LONG_PROMPT[:1000], 4).error == "The engine failed: out of luck"
    assert run(scheduler, LONG_PROMPT[:1000], 4).error is None


def test_a_failed_reload_ends_the_scheduler(engine: GenAiEngine, model_folder: Path) -> None:
    deaths: list[bool] = []
    scheduler = Scheduler(
        BreakingEngine(engine, failures=1, loads=False),  # type: ignore[arg-type]
        EngineSettings(model_folder, max_batch_size=1),
        on_death=lambda: deaths.append(True),
    )
    scheduler.start()
    running, waiting = submit(scheduler, PROMPT, 4), submit(scheduler, PROMPT, 4)
    scheduler.close()

    assert running.wait().error is not None
    assert waiting.wait().error is not None
    assert deaths == [True]


def test_a_failed_engine_is_loaded_again(model_folder: Path) -> None:
    engine = GenAiEngine(EngineSettings(model_folder, max_batch_size=1))
    lost = engine.add(request(PROMPT, 100))
    engine.step()
    engine.reload()
    handle = engine.add(request(PROMPT, 1))
    engine.step()

    assert handle.can_read()
    lost.cancel()


def test_signals_are_handled_after_the_engine_is_dropped_by_another_thread(
    model_folder: Path,
) -> None:
    """A handler of Python's runs on the stack that OpenVINO had set up and freed, if it is set."""
    library = ctypes.CDLL(None)

    def stack() -> bytes:
        found = ctypes.create_string_buffer(24)  # stack_t
        assert library.sigaltstack(None, found) == 0
        return found.raw

    before = stack()
    engines = [GenAiEngine(EngineSettings(model_folder, max_batch_size=1))]
    dropped = threading.Thread(target=engines.clear)
    dropped.start()
    dropped.join()
    assert stack() == before
