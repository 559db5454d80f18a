"""Requests to answer items, with a fake engine that follows a script."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any

import pytest
from tests.fakes.engine import FakeEngine
from tests.support.virtual_time import virtually

from trtllm_truss.errors import EngineUnavailable, InvalidRequest, QueueFull
from trtllm_truss.releases import CacheReport
from trtllm_truss.request_fields import Sampling
from trtllm_truss.requests import (
    Alternative,
    AnswerItem,
    FinishReason,
    GenerationEnd,
    GenerationRequest,
    TextDelta,
    TokenDelta,
    Usage,
)
from trtllm_truss.settings.model import Serving
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.triton.client.engine_messages import EngineRequest


def asked(**fields: Any) -> GenerationRequest:
    return GenerationRequest(**{"prompt": "Hi", "max_tokens": 20, **fields})


def texts(items: Sequence[AnswerItem]) -> dict[int, str]:
    joined: dict[int, str] = defaultdict(str)
    for item in items:
        if isinstance(item, TextDelta):
            joined[item.index] += item.text
    return dict(joined)


def ends(items: Sequence[AnswerItem]) -> list[GenerationEnd]:
    return [item for item in items if isinstance(item, GenerationEnd)]


async def generated(engine: FakeEngine, *requests: GenerationRequest) -> list[AnswerItem]:
    answers = engine.generator.generate(requests, call_id="call")
    return [item async for together in answers for item in together]


async def one(engine: FakeEngine, **fields: Any) -> tuple[str, GenerationEnd]:
    items = await generated(engine, asked(**fields))
    (finish,) = ends(items)
    return texts(items).get(0, ""), finish


@pytest.mark.parametrize(
    ("cached", "expected"),
    [(None, None), (0, 0), (1, 2), (9, 9)],
    ids=["not told", "nothing", "a block", "a whole prompt but its last token"],
)
@virtually
async def test_cached_tokens(
    tokenizer: TextTokenizer, cached: int | None, expected: int | None
) -> None:
    report = CacheReport("kv_cache_reused_blocks", 2)
    engine = FakeEngine(lambda _: ["a", "b"], tokenizer, cached=cached, cache_report=report)
    _, end = await one(engine, prompt=None, prompt_ids=tuple(range(500, 510)))
    assert end.usage.prompt_tokens == 10
    assert end.usage.cached_tokens == expected
    assert engine.counted("cached_prompt_tokens") == (expected or 0)


@virtually
async def test_an_engine_without_a_report_is_not_asked(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: ["a"], tokenizer, cached=3)
    _, end = await one(engine)
    assert end.usage.cached_tokens is None


@virtually
async def test_answers_run_concurrently(tokenizer: TextTokenizer) -> None:
    def script(request: EngineRequest) -> list[Any]:
        return [1.0, f"I am {request.request_id}", 1.0, "."]

    engine = FakeEngine(script, tokenizer)
    items = await generated(engine, asked(n=2, sampling=Sampling(seed=2**64 - 1)), asked())
    assert asyncio.get_running_loop().time() == 2.0
    assert texts(items) == {
        0: "I am call.",
        1: "I am call-1.",
        2: "I am call-2.",
    }
    assert [request.sampling.seed for request in engine.requests[:2]] == [2**64 - 1, 0]
    assert [finish.seed for finish in ends(items)][:2] == [2**64 - 1, 0]
    assert engine.requests[2].sampling.seed is not None
    assert engine.counted("requests_finished") == 3
    assert sorted(engine.ended) == ["call", "call-1", "call-2"]


@virtually
async def test_answers_beyond_the_slots_run_in_sequence(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: [1.0, "yes"], tokenizer, places=2)
    items = await generated(engine, asked(n=5))
    assert len(ends(items)) == 5
    assert asyncio.get_running_loop().time() == 3.0
    assert engine.admission.running == 0


@virtually
async def test_one_failed_answer_ends_all(tokenizer: TextTokenizer) -> None:
    failing = {"call-1": [1.0, "a", EngineUnavailable("gone")]}
    engine = FakeEngine(
        lambda request: failing.get(request.request_id, [1.0, "b", 1000.0, "c"]), tokenizer
    )
    with pytest.raises(EngineUnavailable):
        await generated(engine, asked(n=3))
    assert len(engine.ended) == 3
    assert engine.counted("requests_failed") == 3
    assert engine.counted("requests_cancelled") == 0
    assert engine.admission.running == 0


@virtually
async def test_closing_the_generator_ends_all_answers(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: ["a", 1000.0, "b"], tokenizer, places=2)
    async with aclosing(engine.generator.generate([asked(n=3)])) as items:
        await anext(items)
    assert len(engine.ended) == 2
    assert engine.counted("requests_cancelled") == 3
    assert engine.admission.running == engine.admission.waiting == 0


@virtually
async def test_one_invalid_request_rejects_the_call(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: ["a"], tokenizer)
    with pytest.raises(InvalidRequest):
        await generated(engine, asked(n=3), asked(logit_bias={1: 1.0}))
    assert not engine.requests
    assert engine.counted("requests_failed") == 1


@virtually
async def test_a_full_queue_rejects_the_whole_call(tokenizer: TextTokenizer) -> None:
    limits = Serving(queue_limit=2)
    engine = FakeEngine(lambda _: [1.0, "a"], tokenizer, places=1, limits=limits)
    first = asyncio.create_task(generated(engine, asked(n=2)))
    await asyncio.sleep(0.5)
    with pytest.raises(QueueFull):
        await generated(engine, asked(n=3))
    assert engine.admission.waiting == 1
    assert len(ends(await first)) == 2
    assert engine.admission.running == engine.admission.waiting == 0


@virtually
async def test_more_answers_than_slots_and_queue_are_rejected(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: ["a"], tokenizer, places=2, limits=Serving(queue_limit=3))
    assert len(ends(await generated(engine, asked(n=5)))) == 5
    with pytest.raises(InvalidRequest, match="6 answers") as refused:
        await generated(engine, asked(n=3), asked(n=3))
    assert refused.value.param == "n"


@virtually
async def test_tokens_and_their_log_probabilities(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: ["One two", " three", " four"], tokenizer)
    items = await generated(engine, asked(log_probs=0, stop_words=("ee",)))
    tokens = [token for item in items if isinstance(item, TextDelta) for token in item.tokens]
    assert [(token.text, token.log_prob) for token in tokens] == [
        ("One", 0.0),
        (" two", -1.0),
        (" thr", -2.0),
    ]
    assert engine.requests[0].return_log_probs
    assert ends(items)[0].usage.completion_tokens == 3


@virtually
async def test_tokens_and_their_alternatives(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: ["One two", " three"], tokenizer, top_log_probs=2)
    items = await generated(engine, asked(log_probs=2))
    tokens = [token for item in items if isinstance(item, TextDelta) for token in item.tokens]
    assert "".join(token.text for token in tokens) == "One two three"
    for place, token in enumerate(tokens):
        first, second = token.alternatives
        assert (first.id, first.log_prob, second.log_prob) == (token.id, 0.0, -9.0)
        assert first.text == token.text or not place
        assert second == Alternative(5, tokenizer.token_text(5), -9.0)
    with pytest.raises(InvalidRequest, match="is 3; the engine returns at most 2"):
        await generated(engine, asked(log_probs=3))


@virtually
async def test_echo_sends_the_prompt_first(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: [" there", "!"], tokenizer)
    items = await generated(engine, asked(echo=True, n=2))
    assert texts(items) == {0: "Hi there!", 1: "Hi there!"}
    ids = tuple(tokenizer.encode("One two three"))
    request = asked(prompt=None, prompt_ids=ids, truncate_prompt=2, echo=True)
    assert texts(await generated(engine, request)) == {0: " two three there!"}
    assert engine.requests[-1].input_ids == list(ids[-2:])


@virtually
async def test_an_echo_without_an_answer_asks_no_engine(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: ["never"], tokenizer)
    items = await generated(engine, asked(echo=True, n=2, max_tokens=0))
    assert texts(items) == {0: "Hi", 1: "Hi"}
    assert [finish.reason for finish in ends(items)] == [FinishReason.LENGTH] * 2
    assert [finish.usage for finish in ends(items)] == [Usage(1, 0)] * 2
    assert engine.requests == []
    assert engine.counted("requests_finished") == 2


@pytest.mark.parametrize("max_tokens", [0, 2])
@virtually
async def test_an_echo_with_log_probabilities(tokenizer: TextTokenizer, max_tokens: int) -> None:
    engine = FakeEngine(lambda _: [" four", " five"], tokenizer, top_log_probs=2)
    scored = asked(prompt="One two three", echo=True, log_probs=2, max_tokens=max_tokens, n=2)
    items = await generated(engine, scored)
    rest = " four five" if max_tokens else ""
    assert texts(items) == dict.fromkeys(range(2), f"One two three{rest}")
    for index in range(2):
        deltas = [item for item in items if isinstance(item, TextDelta) and item.index == index]
        tokens = [token for delta in deltas for token in delta.tokens]
        assert "".join(token.text for token in tokens) == f"One two three{rest}"
        assert [token.log_prob for token in tokens][:3] == [None, 0.0, -1.0]
        assert not tokens[0].alternatives
        assert [other.id for other in tokens[2].alternatives] == [tokens[2].id, 5]
    assert {finish.usage.completion_tokens for finish in ends(items)} == {max_tokens}
    assert [request.max_tokens for request in engine.requests] == [max(1, max_tokens)] * 2


@pytest.mark.parametrize(
    ("max_tokens", "requests"),
    [
        (0, [("call", "context", 1, False)]),
        (2, [("call-prompt", "context", 1, False), ("call", "generation", 2, True)]),
    ],
)
@virtually
async def test_an_echo_with_log_probabilities_from_logits(
    tokenizer: TextTokenizer, max_tokens: int, requests: list[tuple[str, str, int, bool]]
) -> None:
    def script(request: EngineRequest) -> list[Any]:
        return [" never"] if request.logits == "context" else [" four", " five"]

    engine = FakeEngine(script, tokenizer, top_log_probs=2, logits_vocabulary=100)
    scored = asked(prompt="One two three", echo=True, log_probs=2, max_tokens=max_tokens)
    items = await generated(engine, scored)
    assert texts(items) == {0: "One two three" + (" four five" if max_tokens else "")}
    tokens = [token for item in items if isinstance(item, TextDelta) for token in item.tokens]
    assert [token.log_prob for token in tokens][:3] == [None, 0.0, -1.0]
    assert [other.id for other in tokens[2].alternatives] == [tokens[2].id, 5]
    assert ends(items)[0].usage.completion_tokens == max_tokens
    assert [
        (request.request_id, request.logits, request.max_tokens, request.streaming)
        for request in engine.requests
    ] == requests
    assert engine.admission.running == 0


@pytest.mark.parametrize(("answers", "took_s"), [(2, 1.0), (3, 2.0), (4, 2.0)])
@virtually
async def test_logits_of_answers_share_the_memory(
    tokenizer: TextTokenizer, answers: int, took_s: float
) -> None:
    """Ten tokens fit: two answers run at once, and one without logits beside them."""
    steps: list[Any] = [0.0, EngineUnavailable("gone")]
    engine = FakeEngine(lambda _: steps, tokenizer, top_log_probs=2, logits_vocabulary=2**27 // 10)
    scored = asked(n=answers, log_probs=2, max_tokens=4)
    with pytest.raises(EngineUnavailable):
        await generated(engine, scored)
    steps[:] = [1.0, "yes"]
    assert len(ends(await generated(engine, scored, asked()))) == answers + 1
    assert asyncio.get_running_loop().time() == took_s


@virtually
async def test_an_engine_without_log_probabilities_of_prompts(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: ["never"], tokenizer)
    refused = asked(echo=True, log_probs=0)
    with pytest.raises(InvalidRequest, match="no log probabilities of the prompt") as raised:
        await generated(engine, refused)
    assert raised.value.param == "echo"


@virtually
async def test_running_usage(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: ["One two", " three"], tokenizer)
    items = await generated(engine, asked(running_usage=True, echo=True))
    usages = [item.usage for item in items if isinstance(item, TextDelta)]
    assert usages == [Usage(1, 2), Usage(1, 2), Usage(1, 3)]
    items = await generated(engine, asked())
    assert all(item.usage is None for item in items if isinstance(item, TextDelta))


@virtually
async def test_only_the_first_end_has_prompt_tokens(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: ["!"], tokenizer)
    items = await generated(engine, asked(prompt="<|im_start|>Hi 🤖", prompt_details=True, n=2))
    first, second = sorted(ends(items), key=lambda finish: finish.index)
    assert "".join(token.text for token in first.prompt) == "<|im_start|>Hi 🤖"
    assert [token.special for token in first.prompt][:2] == [True, False]
    assert not second.prompt


@pytest.mark.parametrize("include", [False, True])
@virtually
async def test_finish_reasons(tokenizer: TextTokenizer, include: bool) -> None:
    eos, start = tokenizer.eos_ids[0], tokenizer.encode("<|im_start|>")[0]

    engine = FakeEngine(lambda _: ["Yes", " no"], tokenizer)
    text, finish = await one(engine, stop_words=("s n",), include_stop=include)
    assert text == ("Yes n" if include else "Ye")
    assert (finish.reason, finish.stop_word) == (FinishReason.STOP, "s n")

    engine = FakeEngine(lambda _: ["Yes", [start, 5]], tokenizer)
    text, finish = await one(engine, stop_words=("<|im_start|>",), include_stop=include)
    assert text == ("Yes<|im_start|>" if include else "Yes")
    assert (finish.reason, finish.stop_word) == (FinishReason.STOP, "<|im_start|>")
    assert engine.requests[0].stop_words == [[start]]

    (no,) = tokenizer.encode(" no")
    engine = FakeEngine(lambda _: ["Yes", " no"], tokenizer)
    text, finish = await one(engine, stop_token_ids=(no, start), include_stop=include)
    assert (text, finish.stop_word) == ("Yes", None)
    assert (finish.reason, finish.usage.completion_tokens) == (FinishReason.STOP, 1)
    assert engine.requests[0].stop_words == [[no], [start]]
    _, finish = await one(engine, stop_token_ids=(no,), ignore_eos=True)
    assert finish.reason is FinishReason.STOP
    assert (engine.requests[1].end_id, engine.requests[1].stop_words) == (no, [])

    engine = FakeEngine(lambda _: ["Yes"], tokenizer)  # the engine leaves its end id out
    text, finish = await one(engine, include_stop=include)
    assert (text, finish.stop_word) == ("Yes", None)
    assert finish.reason is FinishReason.STOP
    assert engine.requests[0].end_id == eos
    _, finish = await one(engine, max_tokens=1)
    assert finish.reason is FinishReason.LENGTH


@virtually
async def test_special_tokens_are_kept_on_request(tokenizer: TextTokenizer) -> None:
    start = tokenizer.encode("<|im_start|>")
    engine = FakeEngine(lambda _: ["Yes", start, " no"], tokenizer)
    assert (await one(engine))[0] == "Yes no"
    assert (await one(engine, skip_special_tokens=False))[0] == "Yes<|im_start|> no"


@virtually
async def test_consecutive_failures_count_as_silence(tokenizer: TextTokenizer) -> None:
    """Cover failures of the connection and of the answer, at any speed."""

    def refused(request: EngineRequest) -> list[Any]:
        raise EngineUnavailable("the engine cannot be reached")

    for script in (refused, lambda _: [EngineUnavailable("stub process is not healthy")]):
        engine = FakeEngine(script, tokenizer)
        for _ in range(3):
            assert engine.heartbeat.silent_for_s == 0
            with pytest.raises(EngineUnavailable):
                await one(engine)
        assert engine.heartbeat.silent_for_s > 0


async def tokens_of(engine: FakeEngine, **fields: Any) -> list[TokenDelta]:
    answers = engine.generator.tokens(asked(**fields), "dynamo", "call")
    return [delta async for together in answers for delta in together]


@virtually
async def test_tokens_come_undecoded_with_their_end(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: [[5, 6], 1.0, [7]], tokenizer)
    deltas = await tokens_of(engine)
    assert [delta.ids for delta in deltas if delta.ids] == [(5, 6), (7,)]
    *others, last = [delta.end for delta in deltas]
    assert others == [None] * len(others)
    assert last is not None
    assert (last.reason, last.usage.completion_tokens) == (FinishReason.STOP, 3)
    assert engine.ended == ["call"]
    assert engine.counted("requests_finished") == 1


@virtually
async def test_tokens_of_several_answers_have_their_number(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda request: [[5 + len(request.request_id)]], tokenizer)
    deltas = await tokens_of(engine, n=2)
    assert {delta.index: delta.ids for delta in deltas} == {0: (9,), 1: (11,)}


@virtually
async def test_tokens_end_before_a_stop_token(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: [[5, 6, 9, 7], 1000.0], tokenizer)
    deltas = await tokens_of(engine, stop_token_ids=(8, 9))
    assert [delta.ids for delta in deltas] == [(5, 6)]
    assert deltas[-1].end is not None
    assert deltas[-1].end.reason is FinishReason.STOP


@virtually
async def test_tokens_up_to_the_limit_end_by_length(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: [[5, 6]], tokenizer)
    deltas = await tokens_of(engine, max_tokens=2)
    assert deltas[-1].end is not None
    assert deltas[-1].end.reason is FinishReason.LENGTH


@virtually
async def test_an_abandoned_request_keeps_its_slot_until_the_engine_has_stopped_it(
    tokenizer: TextTokenizer,
) -> None:
    """Else the next request would wait in the engine, which processes its prompt in any case."""
    engine = FakeEngine(lambda _: ["a", 60.0, "b"], tokenizer, places=1)
    engine.stopping = asyncio.get_running_loop().create_future()
    async with aclosing(engine.generator.generate([asked()])) as answers:
        await anext(answers)
    following = asyncio.create_task(generated(engine, asked()))
    await asyncio.sleep(1)
    assert (engine.admission.running, engine.admission.waiting) == (1, 1)
    assert len(engine.requests) == 1
    engine.stopping.set_result(None)
    assert texts(await following) == {0: "ab"}
    assert engine.admission.running == 0


@virtually
async def test_the_logits_of_an_abandoned_request_stay_counted_until_it_has_stopped(
    tokenizer: TextTokenizer,
) -> None:
    """Ten tokens fit, an answer has up to six."""
    steps: list[Any] = ["a", 5.0, "b"]
    engine = FakeEngine(lambda _: steps, tokenizer, top_log_probs=2, logits_vocabulary=2**27 // 10)
    engine.stopping = asyncio.get_running_loop().create_future()
    scored = asked(log_probs=2, max_tokens=6)
    async with aclosing(engine.generator.generate([scored])) as answers:
        await anext(answers)
    following = asyncio.create_task(generated(engine, scored))
    await asyncio.sleep(1)
    assert len(engine.requests) == 1
    assert texts(await generated(engine, asked())) == {0: "ab"}
    assert len(engine.requests) == 2
    engine.stopping.set_result(None)
    assert texts(await following) == {0: "ab"}


@virtually
async def test_a_hang_is_noticed_whose_callers_leave(tokenizer: TextTokenizer) -> None:
    """Each leaves after 30 s, and the engine does not stop its request."""
    loop = asyncio.get_running_loop()
    engine = FakeEngine(lambda _: [1e6, "a"], tokenizer, places=2, clock=loop.time)
    began = loop.time()
    while engine.heartbeat.silent_for_s < 100 and loop.time() < began + 1000:
        engine.stopping = loop.create_future()
        loop.call_later(60, engine.stopping.set_result, None)  # given up
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(generated(engine, asked()), 30)
    assert loop.time() < began + 150


@virtually
async def test_leaving_a_stream_of_tokens_frees_its_place(tokenizer: TextTokenizer) -> None:
    engine = FakeEngine(lambda _: [[5], 1000.0, [6]], tokenizer)
    async with aclosing(engine.generator.tokens(asked(), "dynamo", "call")) as deltas:
        (delta,) = await anext(deltas)
        assert delta.ids == (5,)
        assert engine.admission.running == 1
    assert engine.admission.running == 0
    assert engine.ended == ["call"]
    assert engine.counted("requests_cancelled") == 1
