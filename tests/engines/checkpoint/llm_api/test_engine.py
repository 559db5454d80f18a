"""Requests on the engine's event loop: tokens, finish, cancellation, refusals."""

from __future__ import annotations

import json
import sys
import threading
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backends.token_model.backend_requests import (
    END_ID,
    OUTPUTS,
    PROMPT,
    Caller,
    tensors,
    word_list,
)
from tests.engines.checkpoint.llm_api.conftest import LLM_ARGS, StartEngine
from tests.support.waiting import settles

from trtllm_backends.llm_api.engine import LlmEngine
from trtllm_backends.llm_api.request import LlmRequest, read_llm_request, sampling_params
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.tokenizer import load_tokenizer

ALL_OUTPUTS = (
    *OUTPUTS,
    "top_logprob_ids",
    "top_logprobs",
    "output_log_probs",
    "cum_log_probs",
    "num_output_tokens",
    "cached_tokens",
)


def read(
    engine: LlmEngine, output_len: int = 8, *, request_id: str = "", **inputs: Any
) -> LlmRequest:
    prompt = inputs.pop("prompt", PROMPT)
    given = {"exclude_input_in_output": True, "streaming": True, **inputs}
    return read_llm_request(
        request_id,
        tensors(prompt, output_len, **given),
        ALL_OUTPUTS,
        engine._limits,
        engine._settings,
    )


def begin(engine: LlmEngine, output_len: int = 8, **inputs: Any) -> Caller:
    caller = Caller()
    engine.submit(read(engine, output_len, **inputs), caller)
    return caller


def answer(engine: LlmEngine, output_len: int = 8, **inputs: Any) -> list[int]:
    caller = begin(engine, output_len, **inputs).wait()
    assert caller.error is None
    assert caller.finals == 1
    return caller.tokens


@pytest.fixture(scope="module")
def greedy(engine: LlmEngine) -> list[int]:
    """The first eight tokens of the greedy answer."""
    return answer(engine)


def test_streams_send_each_token_once(engine: LlmEngine, greedy: list[int]) -> None:
    caller = begin(engine).wait()

    assert len(greedy) == 8
    assert caller.tokens == greedy
    assert [outputs["output_ids"].shape for outputs in caller.responses] == [(1, 1, 1)] * 8


def test_whole_answers_repeat_the_prompt_unless_told_otherwise(
    engine: LlmEngine, greedy: list[int]
) -> None:
    whole = {"streaming": False}

    assert answer(engine, **whole) == greedy
    assert answer(engine, **whole, exclude_input_in_output=False) == PROMPT + greedy


@pytest.mark.parametrize("streaming", [True, False])
def test_two_turns_of_a_conversation_are_told_of_the_cache(
    engine: LlmEngine, streaming: bool
) -> None:
    prompt = [400 + streaming, *range(500, 560)]
    first = begin(engine, prompt=prompt, streaming=streaming).wait()
    turn = [*prompt, *first.tokens, 9, 9, 9]
    second = begin(engine, prompt=turn, streaming=streaming).wait()
    told = [caller.responses[0]["cached_tokens"].item() for caller in (first, second)]
    # The last token of an answer was never an input.
    assert told == [0, len(prompt) + len(first.tokens) - 1]
    later = [*first.responses[1:], *second.responses[1:]]
    assert not any("cached_tokens" in response for response in later)


def test_more_than_the_librarys_default_of_32_tokens(engine: LlmEngine) -> None:
    assert len(answer(engine, 40)) == 40


@pytest.mark.parametrize("streaming", [True, False])
def test_the_end_token_is_left_out(engine: LlmEngine, greedy: list[int], streaming: bool) -> None:
    at = next(place for place in range(3, 8) if greedy[place] not in greedy[:place])

    assert answer(engine, streaming=streaming, end_id=greedy[at]) == greedy[:at]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("end", [{}, {"end_id": END_ID}])
def test_stop_words_stay_in_the_answer(
    engine: LlmEngine, greedy: list[int], streaming: bool, length: int, end: dict[str, int]
) -> None:
    at = next(place for place in range(3, 8) if greedy[place] not in greedy[:place])
    word = word_list([999, 998], greedy[at + 1 - length : at + 1])

    got = answer(engine, streaming=streaming, stop_words_list=word, **end)

    assert got == greedy[: at + 1]


def test_a_stop_word_may_begin_in_the_prompt(engine: LlmEngine, greedy: list[int]) -> None:
    assert answer(engine, stop_words_list=word_list([PROMPT[-1], greedy[0]])) == greedy[:1]


def test_log_probabilities_come_with_each_token(engine: LlmEngine, greedy: list[int]) -> None:
    streamed = begin(engine, return_log_probs=True).wait()
    whole = begin(engine, return_log_probs=True, streaming=False).wait()
    (last,) = whole.responses

    assert streamed.tokens == whole.tokens == greedy
    assert last["output_log_probs"].shape == (1, 1, 8)
    assert last["cum_log_probs"][0, 0] == pytest.approx(last["output_log_probs"].sum(), abs=1e-4)
    final = streamed.responses[-1]["output_log_probs"]
    np.testing.assert_allclose(final, last["output_log_probs"], atol=1e-5)


@pytest.fixture(scope="module")
def torch_sampler(start_engine: StartEngine) -> LlmEngine:
    return start_engine(llm_args={"sampler_type": "TorchSampler"})


@pytest.mark.parametrize("streaming", [True, False])
def test_the_likeliest_tokens_of_each_place(
    torch_sampler: LlmEngine, greedy: list[int], streaming: bool
) -> None:
    caller = begin(torch_sampler, num_top_logprobs=3, return_log_probs=True, streaming=streaming)
    caller.wait()
    names = ("top_logprob_ids", "top_logprobs")
    ids, log_probs = (
        np.concatenate([outputs[name] for outputs in caller.responses], axis=2) for name in names
    )

    assert ids.shape == log_probs.shape == (1, 1, 8, 3)
    assert ids[0, 0, :, 0].tolist() == greedy
    np.testing.assert_allclose(
        log_probs[0, 0, :, 0], caller.responses[-1]["output_log_probs"][0, 0], atol=1e-5
    )
    assert (np.diff(log_probs[0, 0]) < 0).all()


def test_a_seed_repeats_an_answer(engine: LlmEngine) -> None:
    drawn = {"runtime_top_k": 50, "temperature": 2.0}
    one, again, other = (answer(engine, 12, seed=seed, **drawn) for seed in (1, 1, 2))

    assert one == again != other


def test_temperature_alone_is_greedy(engine: LlmEngine, greedy: list[int]) -> None:
    assert answer(engine, temperature=2.0) == greedy


def test_min_tokens_delay_the_end(engine: LlmEngine, greedy: list[int]) -> None:
    got = answer(engine, end_id=greedy[0], min_tokens=4)

    assert len(got) >= 4


def test_a_guide_is_followed(engine: LlmEngine, checkpoint: Path) -> None:
    guide = {
        "guided_decoding_guide_type": np.array([b"json_schema"], object),
        "guided_decoding_guide": np.array(['{"enum": ["größtes", "naïve"]}'.encode()], object),
    }
    got = answer(engine, 30, end_id=END_ID, **guide)

    assert json.loads(load_tokenizer(checkpoint).decode(got)) in ("größtes", "naïve")


def test_32_streams_at_once_keep_their_tokens(engine: LlmEngine) -> None:
    prompts = [[*PROMPT, number] for number in range(32)]
    alone = [answer(engine, 12, prompt=prompt) for prompt in prompts[:4]]
    callers = [begin(engine, 12, prompt=prompt) for prompt in prompts]

    assert [caller.wait().tokens for caller in callers[:4]] == alone
    assert {len(caller.wait().tokens) for caller in callers} == {12}


@pytest.mark.parametrize("how", ["leaves", "stops"])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_cancelled_request_ends_with_an_empty_response(
    engine: LlmEngine, how: str, streaming: bool
) -> None:
    caller = begin(engine, 2000, request_id="r", streaming=streaming)
    if streaming:
        caller.wait_for_responses(3)
    if how == "leaves":
        caller.cancelled = True
    else:
        engine.stop_request("r")
    caller.wait()

    assert caller.error is None
    assert caller.responses[-1]["output_ids"].shape == (1, 1, 0)
    assert settles(lambda: not engine._tasks)


def test_an_adapter_is_found_by_its_id(engine: LlmEngine, greedy: list[int]) -> None:
    assert answer(engine, lora_task_id=7) == greedy


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"prompt": [1] * 1100}, "exceeds maximum input length (1024)"),
        ({"lora_task_id": 9}, "lora_task_id 9 is unknown; known ids: 7."),
        ({"beam_width": 2}, "beam_width must be from 1 to max_beam_width, which is 1"),
        ({"bad_words_list": word_list([1, 2])}, "bad_words_list has a word of 2 tokens"),
        ({"draft_input_ids": np.ones((1, 2), np.int32)}, "draft_input_ids is not supported by the"),
        ({"embedding_bias": np.ones((1, 3), np.float32)}, "embedding_bias has 3 values"),
    ],
)
def test_refused_requests_name_the_input(
    engine: LlmEngine, inputs: dict[str, Any], message: str
) -> None:
    caller = Caller()
    try:
        engine.submit(read(engine, **inputs), caller)
    except InvalidRequest as refusal:
        caller.fail(str(refusal), caller_at_fault=True)

    assert message in str(caller.wait().error)
    assert caller.caller_at_fault
    assert answer(engine, 1)  # the engine continues


def test_log_probs_of_beams_need_a_batch_of_one(engine: LlmEngine) -> None:
    limits = replace(engine._limits, max_beam_width=2)
    asked = {"beam_width": 2, "return_log_probs": True, "end_id": END_ID}
    settings = engine._settings

    with pytest.raises(InvalidRequest, match="log probabilities of beams are not supported"):
        read_llm_request("", tensors(PROMPT, 8, **asked), ALL_OUTPUTS, limits, settings)
    alone = replace(settings, llm_args={**settings.llm_args, "max_batch_size": 1})
    assert read_llm_request("", tensors(PROMPT, 8, **asked), ALL_OUTPUTS, limits, alone)


def test_a_bias_is_the_librarys_tensor(engine: LlmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    request = replace(read(engine), embedding_bias=np.arange(8, dtype=np.float32))
    torch = types.SimpleNamespace(from_numpy=memoryview)
    monkeypatch.setitem(sys.modules, "torch", torch)

    given = sampling_params(engine._library, request).embedding_bias
    assert isinstance(given, memoryview)
    assert given[5] == 5


def test_an_error_of_the_worker_for_one_request_is_the_callers(engine: LlmEngine) -> None:
    request = read(engine)
    longer = replace(request.generation, prompt=np.ones(3000, np.int64))
    ours, others = Caller(), begin(engine, 100)
    limits = LLM_ARGS["max_num_tokens"]
    engine.submit(replace(request, generation=longer), ours)

    assert ours.wait().caller_at_fault
    assert str(limits) in str(ours.error)
    assert others.wait().error is None


def test_requests_from_many_threads(engine: LlmEngine, greedy: list[int]) -> None:
    answers: list[list[int]] = []
    threads = [threading.Thread(target=lambda: answers.append(answer(engine))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == [greedy] * 8


def test_the_callers_trace_reaches_a_library_that_traces(start_engine: StartEngine) -> None:
    headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "vendor=x"}
    parameters = json.dumps({**headers, "priority": 0})
    for llm_args in ({}, {"otlp_traces_endpoint": "http://127.0.0.1:1"}):
        traced = start_engine(llm_args=llm_args)
        given: list[dict[str, Any]] = []
        generate = traced._llm.generate_async

        def spy(*args: Any, generate: Any = generate, given: Any = given, **named: Any) -> Any:
            given.append(named)
            return generate(*args, **named)

        traced._llm.generate_async = spy
        inputs = tensors(PROMPT, 2, streaming=True)
        request = read_llm_request(
            "r", inputs, OUTPUTS, traced._limits, traced._settings, parameters
        )
        caller = Caller()
        traced.submit(request, caller)
        assert caller.wait().error is None
        assert [named.get("trace_headers") for named in given] == [headers if llm_args else None]
