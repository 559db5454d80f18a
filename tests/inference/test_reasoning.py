"""Answers with reasoning and a guide, or with a limit of reasoning, from a scripted model."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from tests.fakes.engine import ENGINE, FakeEngine
from tests.inference.test_generation import ends, generated, texts
from tests.support.smollm2 import smollm2_tokenizer
from tests.support.virtual_time import virtually
from tokenizers import AddedToken, Tokenizer

from trtllm_truss.engines.cpu.engine import CpuEngine
from trtllm_truss.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineUnavailable,
    InvalidRequest,
)
from trtllm_truss.releases import CacheReport
from trtllm_truss.request_fields import Sampling
from trtllm_truss.requests import (
    ChatFormat,
    FinishReason,
    GenerationEnd,
    GenerationRequest,
    Guide,
    TextDelta,
    Usage,
)
from trtllm_truss.settings.model import Serving
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.text.tokenizer_parts import TokenizerParts
from trtllm_truss.tool_calls.catalog import REASONING_FORMATS
from trtllm_truss.triton.client.engine_messages import EngineRequest

THINK = REASONING_FORMATS["qwen3"]
GUIDE = Guide("regex", r"\{.*\}")
JSON = '{"a": 1}'
BIG = replace(ENGINE, max_sequence_tokens=400, max_input_tokens=399)
OPEN, CLOSED = "Hi <think>\n", "Hi <think>\n\n</think>\n\n"


@dataclass
class Model:
    """A model that reasons and then says `Well.`; its guide binds from the first token.

    Attributes:
        tokenizer: its tokenizer.
        thoughts: its reasoning; None for none.
        writes_start: the model writes `<think>` itself.
        ends: the model closes its reasoning.
        together: tokens in one response.
        pause_s: time before each response.
    """

    tokenizer: TextTokenizer
    thoughts: str | None = "Hm. So it is."
    writes_start: bool = False
    ends: bool = True
    together: int = 1
    pause_s: float = 0.0

    def __call__(self, request: EngineRequest) -> list[Any]:
        prompt = self.tokenizer.decode(request.input_ids, skip_special_tokens=False)
        text = JSON if request.guide else "Well."
        if request.guide is None and "</think>" not in prompt and self.thoughts is not None:
            start = "<think>\n" if self.writes_start else ""
            text = start + self.thoughts + ("\n</think>\n\nWell." if self.ends else "")
        return self.steps(self.tokenizer.encode(text), request)

    def steps(self, ids: list[int], request: EngineRequest) -> list[Any]:
        stops = [at for at, token in enumerate(ids, 1) if [token] in list(request.stop_words)]
        ids = ids[: min(stops, default=None)][: request.max_tokens]
        each = range(0, max(1, len(ids)), self.together)
        return [step for at in each for step in (self.pause_s, ids[at : at + self.together])]


@pytest.fixture(params=["spelled", "special"])
def tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    """A tokenizer without tokens for the markers, or with special ones."""
    return smollm2_tokenizer() if request.param == "spelled" else with_markers()


@cache
def with_markers() -> TextTokenizer:
    backend = Tokenizer.from_str(smollm2_tokenizer()._backend.to_str())
    markers = [AddedToken(word, normalized=False) for word in ("<think>", "</think>")]
    backend.add_special_tokens(markers)
    return TextTokenizer(TokenizerParts(backend, eos_ids=(2,)))


def asked(prompt: str = OPEN, **fields: Any) -> GenerationRequest:
    chat = ChatFormat(reasoning=THINK, answer_prefix=fields.pop("answer_prefix", ""))
    shown = THINK.special_tokens
    given = {"chat": chat, "guide": GUIDE, "max_tokens": 100, "shown_special_tokens": shown}
    return GenerationRequest(prompt=prompt, **{**given, **fields})


def engine_of(model: Model, limit: int | None = None, **fields: Any) -> FakeEngine:
    limits = Serving(chunk_interval_ms=0, reasoning_limit_tokens=limit)
    given = {"limits": limits, "engine": BIG}
    return FakeEngine(model, model.tokenizer, **{**given, **fields})


async def one(engine: FakeEngine, request: GenerationRequest) -> tuple[str, GenerationEnd]:
    items = await generated(engine, request)
    (end,) = ends(items)
    assert engine.admission.running == 0
    assert engine.heartbeat.answered == 1
    assert engine.counted("requests_finished") == 1
    assert engine.counted("generation_tokens") == end.usage.completion_tokens
    assert engine.counted("prompt_tokens") == end.usage.prompt_tokens
    return texts(items).get(0, ""), end


def count(tokenizer: TextTokenizer, *parts: str) -> int:
    return sum(len(tokenizer.encode(part)) for part in parts)


@pytest.mark.parametrize("together", [1, 3, 100])
@virtually
async def test_the_guide_begins_after_the_reasoning(
    tokenizer: TextTokenizer, together: int
) -> None:
    engine = engine_of(Model(tokenizer, together=together))
    text, end = await one(engine, asked())
    assert text == "<think>\nHm. So it is.\n</think>\n\n" + JSON
    first, second = engine.requests
    assert (first.guide, second.guide) == (None, GUIDE)
    prompt = tokenizer.decode(second.input_ids, skip_special_tokens=False)
    assert prompt == "Hi <think>\nHm. So it is.\n</think>\n\n"
    assert second.input_ids[: len(first.input_ids)] == first.input_ids
    assert second.request_id not in ("call", "call-1")
    reasoned = count(tokenizer, "Hm. So it is.\n</think>")
    asked_for = count(tokenizer, OPEN)
    assert end.usage == Usage(asked_for, reasoned + count(tokenizer, JSON), reasoned)
    assert (first.max_tokens, second.max_tokens) == (100, 100 - reasoned)
    assert first.sampling.seed == second.sampling.seed == end.seed
    assert end.reason is FinishReason.STOP


@pytest.mark.parametrize("together", [1, 3, 100])
@virtually
async def test_the_model_begins_its_reasoning(tokenizer: TextTokenizer, together: int) -> None:
    engine = engine_of(Model(tokenizer, writes_start=True, together=together))
    text, end = await one(engine, asked("Hi"))
    assert text == "<think>\nHm. So it is.\n</think>\n\n" + JSON
    assert end.usage.reasoning_tokens == count(tokenizer, "<think>\nHm. So it is.\n</think>")


@pytest.mark.parametrize("together", [1, 100])
@virtually
async def test_the_model_does_not_reason(tokenizer: TextTokenizer, together: int) -> None:
    """Tokens that the model generates without the guide until then do not count."""
    engine = engine_of(Model(tokenizer, thoughts=None, together=together))
    text, end = await one(engine, asked("Hi"))
    assert text == JSON
    assert end.usage == Usage(1, count(tokenizer, JSON), 0)
    assert engine.requests[1].input_ids == engine.requests[0].input_ids
    assert engine.requests[1].max_tokens == 100


@virtually
async def test_one_request_is_enough_where_the_template_has_ended_the_reasoning(
    tokenizer: TextTokenizer,
) -> None:
    engine = engine_of(Model(tokenizer))
    text, _ = await one(engine, asked(CLOSED))
    assert text == JSON
    assert len(engine.requests) == 1
    engine = engine_of(Model(tokenizer))
    await one(engine, asked(chat=ChatFormat()))
    assert len(engine.requests) == 1
    engine = engine_of(Model(tokenizer))
    await one(engine, asked(guide=None))  # nor without a guide
    assert len(engine.requests) == 1


@virtually
async def test_text_behind_the_end_in_the_same_token_is_dropped() -> None:
    tokenizer = smollm2_tokenizer()
    (last,) = tokenizer.encode(">.")
    before = tokenizer.encode("Hm.</think")
    ids = [*before, last, *tokenizer.encode("Well.")]
    assert tokenizer.decode(ids) == "Hm.</think>.Well."
    model = Model(tokenizer)
    engine = engine_of(model)

    def script(request: EngineRequest) -> list[Any]:
        return model(request) if request.guide else model.steps(ids, request)

    engine._script = script
    text, end = await one(engine, asked(token_details=True))
    assert text == "<think>\nHm.</think>\n\n" + JSON
    assert end.usage.reasoning_tokens == len(before) + 1
    assert end.usage.completion_tokens == len(before) + 1 + count(tokenizer, JSON)


@pytest.mark.parametrize("prompt", [OPEN, "Hi"])
@virtually
async def test_a_model_that_ends_its_answer_within_the_reasoning(
    tokenizer: TextTokenizer, prompt: str
) -> None:
    model = Model(tokenizer, ends=False, writes_start=prompt == "Hi")
    text, _ = await one(engine_of(model), asked(prompt))
    assert text == "<think>\nHm. So it is.\n</think>\n\n" + JSON
    unguided = engine_of(model)
    text, _ = await one(unguided, asked(prompt, guide=None))
    assert text == "<think>\nHm. So it is."
    model.thoughts, model.writes_start = "", False
    text, _ = await one(engine_of(model), asked(prompt))
    assert text.endswith(JSON)


@pytest.mark.parametrize("guide", [GUIDE, None])
@pytest.mark.parametrize("writes_start", [False, True])
@pytest.mark.parametrize("together", [1, 4, 100])
@virtually
async def test_reasoning_is_ended_at_its_limit(
    tokenizer: TextTokenizer, guide: Guide | None, writes_start: bool, together: int
) -> None:
    model = Model(tokenizer, "Hm. " * 50, writes_start=writes_start, together=together)
    engine = engine_of(model, limit=20)
    text, end = await one(engine, asked("Hi" if writes_start else OPEN, guide=guide))
    thoughts, _, answer = text.partition("\n</think>\n\n")
    assert thoughts.startswith("<think>\nHm. Hm.")
    assert answer == (JSON if guide else "Well.")
    assert end.usage.reasoning_tokens == 20
    assert end.usage.completion_tokens == 20 + count(tokenizer, answer)
    assert engine.requests[0].max_tokens == (20 if guide else 100)
    assert end.reason is FinishReason.STOP


@virtually
async def test_closing_tokens_are_omitted_as_the_models_own() -> None:
    tokenizer = with_markers()
    chat = ChatFormat(reasoning=THINK, shows_reasoning_start=False)
    for limit, thoughts in ((20, "Hm. " * 50), (None, "Hm. " * 10)):
        engine = engine_of(Model(tokenizer, thoughts), limit)
        text, _ = await one(engine, asked(chat=chat, guide=None, shown_special_tokens=frozenset()))
        assert text.startswith("Hm. Hm.")
        assert text.lstrip("Hm. ") == "\n\n\nWell."


@pytest.mark.parametrize("model_writes", ["short thoughts", "nothing"])
@virtually
async def test_reasoning_below_its_limit_needs_one_request_without_a_guide(
    tokenizer: TextTokenizer, model_writes: str
) -> None:
    thoughts = "Hm." if model_writes == "short thoughts" else None
    model = Model(tokenizer, thoughts, writes_start=True, together=3)
    engine = engine_of(model, limit=20)
    text, end = await one(engine, asked("Hi", guide=None))
    assert text == ("<think>\nHm.\n</think>\n\nWell." if thoughts else "Well.")
    assert len(engine.requests) == 1
    reasoned = count(tokenizer, "<think>\nHm.\n</think>") if thoughts else 0
    assert end.usage.reasoning_tokens == reasoned


@pytest.mark.parametrize("limit", [None, 10, 11, 20])
@virtually
async def test_reasoning_that_uses_up_max_tokens(
    tokenizer: TextTokenizer, limit: int | None
) -> None:
    engine = engine_of(Model(tokenizer, "Hm. " * 50), limit=limit)
    text, end = await one(engine, asked(max_tokens=10))
    assert text.startswith("<think>\nHm. Hm.")
    assert "</think>" not in text
    assert end.reason is FinishReason.LENGTH
    assert end.usage.completion_tokens == end.usage.reasoning_tokens == 10
    assert len(engine.requests) == 1


@virtually
async def test_the_answer_gets_what_reasoning_leaves_of_max_tokens(
    tokenizer: TextTokenizer,
) -> None:
    reasoned = count(tokenizer, "Hm. So it is.\n</think>")
    for left in (0, 1):
        engine = engine_of(Model(tokenizer))
        text, end = await one(engine, asked(max_tokens=reasoned + left))
        assert end.usage.completion_tokens == reasoned + left
        assert end.reason is FinishReason.LENGTH
        thoughts, _, answer = text.partition("</think>")
        assert thoughts == "<think>\nHm. So it is.\n"
        assert answer == ("\n\n" + tokenizer.decode(tokenizer.encode(JSON)[:1]) if left else "")
        assert len(engine.requests) == 1 + left


@virtually
async def test_reasoning_leaves_room_in_the_context(tokenizer: TextTokenizer) -> None:
    """The engine takes shorter prompts than its context is long."""
    small = replace(BIG, max_input_tokens=40)
    engine = engine_of(Model(tokenizer, "Hm. " * 50), engine=small)
    text, end = await one(engine, asked())
    assert text.endswith("\n</think>\n\n" + JSON)
    assert len(engine.requests[1].input_ids) <= 40
    room = 40 - count(tokenizer, "\n</think>\n\n")
    long = "Hi" + " Hi" * (room - 1 - count(tokenizer, " <think>\n")) + " <think>\n"
    with pytest.raises(ContextLengthExceeded, match="leaves no room for reasoning"):
        await generated(engine, asked(long))
    for limit, guide in ((5, None), (None, GUIDE)):  # counting the tokens of a prompt needs none
        counting = engine_of(Model(tokenizer), limit, engine=small)
        (end,) = ends(await generated(counting, asked(long, guide=guide, max_tokens=0)))
        assert end.usage == Usage(count(tokenizer, long), 0)
    engine = engine_of(Model(tokenizer, "Hm. " * 10), kv_cache_tokens=60)
    await one(engine, asked(max_tokens=1000, max_tokens_given=False))
    second = engine.requests[1]  # has no more tokens than the cache, and than were reserved
    assert len(second.input_ids) + second.max_tokens == 60
    tight = replace(BIG, max_sequence_tokens=40, max_input_tokens=39)
    engine = engine_of(Model(tokenizer, "Hm. " * 50), engine=tight)
    _, end = await one(engine, asked(max_tokens=1000, max_tokens_given=False))
    assert end.reason is FinishReason.LENGTH


@virtually
async def test_stop_words_within_the_reasoning_end_the_answer(tokenizer: TextTokenizer) -> None:
    for word, text in ((" So", "<think>\nHm."), ("</think>", "<think>\nHm. So it is.\n")):
        engine = engine_of(Model(tokenizer))
        found, end = await one(engine, asked(stop_words=(word,)))
        assert found == text
        assert (end.reason, end.stop_word) == (FinishReason.STOP, word)
        assert len(engine.requests) == 1
    # Text that the server puts in is not the model's.
    found, end = await one(engine_of(Model(tokenizer)), asked(stop_words=("\n\n",)))
    assert found.endswith("</think>\n\n" + JSON)
    found, end = await one(engine_of(Model(tokenizer)), asked(stop_words=('"a',)))
    assert (found[-3:], end.stop_word) == ("\n\n{", '"a')
    (dot,) = tokenizer.encode(".")
    engine = engine_of(Model(tokenizer))
    found, end = await one(engine, asked(stop_token_ids=(dot,)))
    assert (found, end.reason) == ("<think>\nHm", FinishReason.STOP)


@virtually
async def test_answers_to_one_prompt_reason_for_themselves(tokenizer: TextTokenizer) -> None:
    engine = engine_of(Model(tokenizer, pause_s=0.1), places=2)
    items = await generated(engine, asked(n=3, sampling=Sampling(seed=7)))
    assert set(texts(items).values()) == {"<think>\nHm. So it is.\n</think>\n\n" + JSON}
    assert sorted(end.seed or 0 for end in ends(items)) == [7, 8, 9]
    assert len({request.request_id for request in engine.requests}) == 6
    assert engine.admission.running == 0


@pytest.mark.parametrize(("guide", "limit"), [(GUIDE, None), (None, 5)])
@virtually
async def test_a_full_queue_does_not_part_reasoning_and_answer(
    tokenizer: TextTokenizer, guide: Guide | None, limit: int | None
) -> None:
    """The place stays taken, also where the first request is stopped after its reasoning."""
    model = Model(tokenizer, pause_s=0.1)
    engine = engine_of(model, limit=limit, places=1)
    running = []

    def script(request: EngineRequest) -> list[Any]:
        running.append(len(engine.requests) - len(engine.ended))
        return model(request)

    engine._script = script
    items = await generated(engine, asked(n=3, guide=guide))
    assert len(ends(items)) == 3
    assert [request.guide for request in engine.requests] == [None, guide] * 3
    assert [request.request_id for request in engine.requests][1::2] == [
        f"{request.request_id}-answer" for request in engine.requests[::2]
    ]
    assert running == [1] * 6


@virtually
async def test_cached_tokens_are_those_of_the_prompt(tokenizer: TextTokenizer) -> None:
    """The second request finds the first one's prompt, which says nothing of the caller's."""
    report = CacheReport("cached_tokens", 1)
    engine = engine_of(Model(tokenizer), cached=2, cache_report=report)
    _, end = await one(engine, asked())
    assert [request.cache_report for request in engine.requests] == [report, None]
    assert end.usage.cached_tokens == 2
    assert engine.counted("cached_prompt_tokens") == 2


@virtually
async def test_a_forced_call_keeps_the_reasoning(tokenizer: TextTokenizer) -> None:
    for thoughts, begin in (("Hm.", "<think>\nHm.\n</think>\n\n"), (None, "")):
        engine = engine_of(Model(tokenizer, thoughts, writes_start=True))
        text, _ = await one(engine, asked("Hi", answer_prefix="<tool_call>\n"))
        assert text == begin + "<tool_call>\n" + JSON
        prompt = tokenizer.decode(engine.requests[1].input_ids, skip_special_tokens=False)
        assert prompt == "Hi" + begin + "<tool_call>\n"


@virtually
async def test_log_probabilities_of_reasoning_and_answer(tokenizer: TextTokenizer) -> None:
    items = await generated(engine_of(Model(tokenizer, together=2)), asked(log_probs=0))
    tokens = [token for item in items if isinstance(item, TextDelta) for token in item.tokens]
    reasoned = count(tokenizer, "Hm. So it is.\n</think>")
    expected = [*range(reasoned), *range(count(tokenizer, JSON))]
    assert [-(token.log_prob or 0) for token in tokens] == expected
    assert "".join(token.text for token in tokens) == "Hm. So it is.\n</think>" + JSON
    (end,) = ends(items)
    assert end.usage.completion_tokens == len(tokens)


@virtually
async def test_min_tokens_and_echo(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines that refuse `min_tokens` with a guide would do so only after the reasoning."""
    engine = engine_of(Model(tokenizer))
    sampling = Sampling(min_tokens=50)
    with pytest.raises(InvalidRequest, match="min_tokens is 50; it is not supported with guide"):
        await generated(engine, asked(sampling=sampling))
    assert not engine.requests
    await generated(engine, asked(sampling=Sampling(min_tokens=1)))
    monkeypatch.setattr(CpuEngine, "guides_set_the_end", False)
    engine = engine_of(Model(tokenizer))
    text, end = await one(engine, asked(echo=True, sampling=sampling, running_usage=True))
    assert text == OPEN + "Hm. So it is.\n</think>\n\n" + JSON
    reasoned = end.usage.reasoning_tokens or 0
    assert engine.requests[1].sampling.min_tokens == 50 - reasoned


@pytest.mark.parametrize(("guide", "limit"), [(GUIDE, None), (None, 5)])
@virtually
async def test_beams_are_refused(
    tokenizer: TextTokenizer, guide: Guide | None, limit: int | None
) -> None:
    engine = engine_of(Model(tokenizer), limit=limit)
    with pytest.raises(InvalidRequest, match="beam_width is 2; this model reasons") as refused:
        await generated(engine, asked(beam_width=2, guide=guide))
    assert refused.value.param == "beam_width"
    assert not engine.requests


@virtually
async def test_a_client_that_leaves_between_reasoning_and_answer(tokenizer: TextTokenizer) -> None:
    engine = engine_of(Model(tokenizer))
    async with aclosing(engine.generator.generate([asked()], call_id="call")) as items:
        async for together in items:
            text = "".join(item.text for item in together if isinstance(item, TextDelta))
            if text.endswith("\n\n"):  # has been put in
                break
    assert engine.ended == ["call"]
    assert len(engine.requests) == 1
    assert engine.counted("requests_cancelled") == 1
    assert engine.admission.running == 0


@virtually
async def test_deadlines_hold_for_both_requests(tokenizer: TextTokenizer) -> None:
    model = Model(tokenizer, together=100, pause_s=4.0)
    limits = {"chunk_interval_ms": 0, "first_token_timeout_s": 5.0, "idle_timeout_s": 3.0}
    engine = engine_of(model, limits=Serving(**limits))
    assert (await one(engine, asked()))[0].endswith(JSON)  # as many first tokens as requests
    engine = engine_of(model, limits=Serving(**limits, request_timeout_s=7.0))
    with pytest.raises(DeadlineExceeded, match="request_timeout_s"):
        await generated(engine, asked())
    assert asyncio.get_running_loop().time() == pytest.approx(8.0 + 7.0)
    assert len(engine.requests) == 2
    assert engine.admission.running == 0


@virtually
async def test_an_engine_that_is_down_between_both_requests(tokenizer: TextTokenizer) -> None:
    model = Model(tokenizer)

    def script(request: EngineRequest) -> list[Any]:
        if request.guide:
            raise EngineUnavailable("the engine is restarting")
        return model(request)

    engine = engine_of(model)
    engine._script = script
    with pytest.raises(EngineUnavailable):
        await generated(engine, asked())
    assert engine.admission.running == 0
    assert engine.counted("requests_failed") == 1
