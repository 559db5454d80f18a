"""Guides and forced calls after reasoning in every family's format, read by its parser."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest
from tests.fakes.engine import ENGINE, FakeEngine
from tests.inference.test_generation import ends, generated, texts
from tests.support.smollm2 import smollm2_tokenizer
from tests.support.virtual_time import virtually
from tests.tool_calls.outputs.notation import Call, Think
from tests.tool_calls.parsing import Part, merge, parse, parts

from trtllm_truss.inference.reasoning import ReasoningPlan, ReasoningReader, State
from trtllm_truss.protocols.tool_use import ModelFormats, ToolUse
from trtllm_truss.requests import FinishReason, GenerationRequest, Guide
from trtllm_truss.settings.model import Serving
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_truss.text.tokenizer_parts import TokenizerParts
from trtllm_truss.tool_calls.catalog import REASONING_FORMATS, TOOL_FORMATS
from trtllm_truss.tool_calls.events import Tool
from trtllm_truss.tool_calls.tool_format import write_call
from trtllm_truss.triton.client.engine_messages import EngineRequest

FAMILIES = {
    "deepseek_r1": "deepseek_v3",
    "qwen3": "hermes",
    "granite": "granite",
    "mistral": "mistral_args",
    "seed_oss": "qwen3_coder",
    "reasoning_tags": "pythonic",
    "harmony": "harmony",
}
"""A format of calls by one of reasoning."""

OSLO = '{"city": "Oslo"}'
WEATHER, TIME = (Tool(name, {"type": "object"}) for name in ("get_weather", "get_time"))
BIG = replace(ENGINE, max_sequence_tokens=2000, max_input_tokens=1999)
FREE = {"harmony": "<|channel|>final<|message|>Well."}
"""Output of a model that does not reason, where it is not `Well.`"""


@cache
def tokenizer(ending: str = "") -> TextTokenizer:
    backend = smollm2_tokenizer()._backend
    template = "{{ messages[-1].content }}" + ending
    return TextTokenizer(
        TokenizerParts(backend, eos_ids=(2,), chat_templates={"default": template})
    )


async def answer(
    family: str, thoughts: str | None, *offered: Tool, is_open: bool = False, **asked: Any
) -> tuple[list[Part], FinishReason, list[EngineRequest]]:
    """Return the contents of an answer.

    Args:
        family: the format of reasoning.
        thoughts: the model's reasoning; None for none.
        offered: functions, one of which is to be called.
        is_open: the prompt ends with the start of the reasoning.
        asked: further fields; `limit` is that of reasoning.
    """
    formats = ModelFormats(TOOL_FORMATS[FAMILIES[family]], REASONING_FORMATS[family])
    words = formats.reasoning
    assert words is not None
    used = tokenizer(words.starts[0] if is_open else "")
    written = (
        FREE.get(family, "Well.")
        if thoughts is None
        else ("" if is_open else words.starts[0]) + thoughts + words.ends[0] + "Well."
    )

    def script(request: EngineRequest) -> list[Any]:
        guide = request.guide
        text = written
        if guide is None and len(request.input_ids) > len(used.encode("Hi" + words.starts[0])):
            text = "Well."
        elif guide is not None:
            text = OSLO
            if offered and '"name"' in guide.text:
                own = TOOL_FORMATS[FAMILIES[family]]
                is_own = len(own.guides(offered, parallel=False)) == 1
                form = own if is_own else TOOL_FORMATS["json"]
                (each,) = form.guides([WEATHER], parallel=False)
                call = write_call(each, "get_weather", OSLO)
                text = call[len(each.prefix) : len(call) - len(each.suffix)]
                json.loads(text)
        ids = used.encode(text, add_special_tokens=False)[: request.max_tokens]
        return [[token] for token in ids]

    limits = Serving(chunk_interval_ms=0, reasoning_limit_tokens=asked.pop("limit", None))
    engine = FakeEngine(script, used, limits=limits, engine=BIG)
    given = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 500, **asked}
    request, new_parser = formats.apply(
        GenerationRequest(**given),
        ToolUse([], offered, is_forced=bool(offered), parallel=False),
    )
    assert new_parser is not None
    items = await generated(engine, request)
    parser = new_parser()
    events = [*parser.feed(texts(items)[0]), *parser.finish()]
    return parts(merge(events)), ends(items)[0].reason, engine.requests


@pytest.mark.parametrize("family", FAMILIES)
@virtually
async def test_every_format_of_reasoning(family: str) -> None:
    guide = Guide("json_schema", '{"type": "object"}')
    call = Call("get_weather", json.loads(OSLO))
    for is_open in {False, REASONING_FORMATS[family].is_single}:
        for thoughts, begin in (("Hm.", [Think("Hm.")]), *([] if is_open else [(None, [])])):
            found, reason, requests = await answer(family, thoughts, is_open=is_open, guide=guide)
            assert found == [*begin, OSLO]
            assert reason is FinishReason.STOP
            assert len(requests) == 2
            for offered in ([WEATHER], [WEATHER, TIME]):
                found, reason, _ = await answer(family, thoughts, *offered, is_open=is_open)
                assert found == [*begin, call], (offered, is_open)


@pytest.mark.parametrize("family", FAMILIES)
@virtually
async def test_every_format_is_closed_at_the_limit(family: str) -> None:
    for guide, text in ((Guide("json_schema", "{}"), OSLO), (None, "Well.")):
        long = "Hm. " * 40
        found, reason, requests = await answer(family, long, guide=guide, limit=40)
        assert isinstance(found[0], Think)
        assert found[0].text.startswith("Hm. Hm.")
        assert found[1:] == [text]
        assert reason is FinishReason.STOP
        assert len(requests) == 2


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "harmony"])
def test_the_reasoning_is_read_where_its_parser_reads_it(family: str) -> None:
    words, used = REASONING_FORMATS[family], tokenizer()
    random = Random(family)
    pieces = ["\n", " ", "<", "Hm.", ">", *words.starts, *words.ends]
    pieces += [word[:-1] for word in (*words.starts, *words.ends)]
    for is_open in (False, True) * 100:
        text = "".join(random.choices(pieces, k=random.randint(1, 8)))
        plan = ReasoningPlan(
            words, is_open=is_open, is_guided=False, limit=1000, prefix="", context_tokens=2000
        )
        reader = ReasoningReader(plan, used)
        ids = used.encode(text, add_special_tokens=False)
        state, count, head = reader.read(ids)
        read = parts(parse([words.starts[0] if is_open else "", text], None, family))
        begun = is_open or text.lstrip().startswith(words.starts)
        if state is not State.ENDED:
            assert (state is State.OPEN) == begun, text
            assert not begun or all(isinstance(part, Think) for part in read), (text, read)
            continue
        before, until = used.decode(ids[: count - 1]), used.decode(ids[:count])
        reasoning = until if head is None else before + head
        assert begun
        assert reasoning.endswith(words.ends)
        rest = parts(parse([words.ends[0], text[len(reasoning) :]], None, family))
        assert [part for part in read if isinstance(part, str)] == rest
