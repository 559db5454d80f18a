"""Guides are checked before a request queues; errors have the caller's field name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from tests.engines.checkpoint.checkpoints import listing as checkpoint_listing
from tests.engines.checkpoint.checkpoints import llama
from tests.engines.engine_configs import listing, new_config
from tests.fakes.engine import ENGINE
from tests.support.inspection import inspect_config
from tests.support.paths import FAKES
from tests.support.waiting import until

from trtllm_truss.engines.deployment import Deployment
from trtllm_truss.engines.engine import Engine
from trtllm_truss.errors import EngineUnavailable, InvalidRequest, QueueFull
from trtllm_truss.guides import validator as validator_module
from trtllm_truss.guides.gate import GuideGate, kept_guides_for
from trtllm_truss.guides.guide import KeptGuides
from trtllm_truss.guides.json_schema import convert_schema
from trtllm_truss.guides.validator import GuideValidator, guide_check_for
from trtllm_truss.inference.preprocessing import Capabilities, PreparedRequest, Preprocessor
from trtllm_truss.requests import GenerationRequest, Guide
from trtllm_truss.settings.model import Settings
from trtllm_truss.text.tokenizer import TextTokenizer

FAKE_WORKER = str(FAKES / "compiler_worker.py")


@pytest.fixture
def check() -> Iterator[GuideValidator]:
    check = GuideValidator([FAKE_WORKER])
    yield check
    check.close()


COMPILED = inspect_config(new_config(), listing(new_config()))
CHECKPOINT = inspect_config(llama(), checkpoint_listing())


def asks_for(order: str) -> GenerationRequest:
    names = {"guide": "response_format"}
    return GenerationRequest(prompt="Hi", max_tokens=5, guide=Guide("regex", order), names=names)


async def plan(
    tokenizer: TextTokenizer,
    check: GuideValidator,
    request: GenerationRequest,
    engine: Engine = ENGINE,
) -> PreparedRequest:
    capabilities = Capabilities(guides=True)
    preprocessor = Preprocessor(engine, tokenizer, capabilities, GuideGate(check))
    return (await preprocessor.prepare(request, map(str, count())))[0]


@pytest.mark.parametrize("engine", [COMPILED, CHECKPOINT, ENGINE])
async def test_only_the_cpu_engine_gets_the_size_of_a_checked_guide(
    tokenizer: TextTokenizer, check: GuideValidator, engine: Engine
) -> None:
    sent = (await plan(tokenizer, check, asks_for("follow"), engine)).engine_request
    assert sent.guide == Guide("regex", "follow")
    assert (sent.guide_bytes is not None) == (engine is ENGINE)


def test_blanks_are_fixed_as_the_grammar_library_needs_it(check: GuideValidator) -> None:
    """LLGuidance 0.7.29 reads `x-guidance` and then refuses other blanks."""
    other, gate = GuideGate(check, library="xgrammar"), GuideGate(check, library="llguidance")
    for text in ("{}", '{"type": "object"}'):
        schema = Guide("json_schema", text)
        assert other.fix_blanks(schema) == schema._replace(fixes_blanks=True)
        sent = gate.fix_blanks(schema)
        assert not sent.fixes_blanks
        options, *rest = json.loads(sent.text).items()
        assert options[0] == "x-guidance"
        assert options[1]["whitespace_flexible"] is False
        assert dict(rest) == json.loads(text)
    for library in (other, gate):
        assert library.fix_blanks(Guide("regex", "a")) == Guide("regex", "a")


async def test_an_invalid_guide_is_a_caller_error(
    tokenizer: TextTokenizer, check: GuideValidator
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await plan(tokenizer, check, asks_for("raise Unclosed '['"))
    assert refused.value.message == "response_format cannot be followed: Unclosed '['"
    assert refused.value.param == "response_format"


async def test_a_strict_schema_is_followed_or_refused(
    tokenizer: TextTokenizer, check: GuideValidator
) -> None:
    def asks(text: str, *, is_strict: bool) -> GenerationRequest:
        return replace(asks_for(""), guide=Guide("json_schema", text, is_strict=is_strict))

    unkept = '{"items": {"type": "integer", "multipleOf": 2}}'
    with pytest.raises(InvalidRequest, match="multipleOf has no effect; leave it out") as refused:
        await plan(tokenizer, check, asks(unkept, is_strict=True))
    assert refused.value.param == "response_format"
    for request in (asks(unkept, is_strict=False), asks("{}", is_strict=True)):
        prepared = await plan(tokenizer, check, request)
        assert request.guide is not None
        assert prepared.engine_request.guide == Guide(
            "ebnf_grammar", convert_schema(request.guide.text, any_blanks=False).grammar
        )
    other = GuideGate(check, library="llguidance")  # which reads schemas itself
    admitted = await other.admit(asks_for(""), Guide("json_schema", unkept, is_strict=True))
    assert admitted.guide == Guide("json_schema", unkept)


async def test_too_many_guides_are_rejected_with_retry_after(
    tokenizer: TextTokenizer,
    check: GuideValidator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(validator_module, "MAX_WAITING", 0)
    with pytest.raises(QueueFull, match="too many guides wait for their check") as refused:
        await plan(tokenizer, check, asks_for("follow"))
    assert refused.value.status == 429
    assert refused.value.retry_after_s
    assert refused.value.param == "response_format"


async def test_a_failed_check_is_not_a_caller_error(tokenizer: TextTokenizer) -> None:
    check = GuideValidator([FAKE_WORKER, "broken"])
    with pytest.raises(EngineUnavailable, match=r"the compiler worker ended \(3\)"):
        await plan(tokenizer, check, asks_for("follow"))
    check.close()


async def test_a_cancelled_request_cancels_its_check(
    tokenizer: TextTokenizer, check: GuideValidator, tmp_path: Path
) -> None:
    notes, gates = tmp_path / "notes", [tmp_path / "gate 0", tmp_path / "gate 1"]
    waiting = [
        asyncio.create_task(plan(tokenizer, check, asks_for(f"wait {gate}"))) for gate in gates
    ]
    await until(lambda: len(check._running) == 2)
    leaver = asyncio.create_task(plan(tokenizer, check, asks_for(f"note {notes}")))
    await until(lambda: len(check._quick) == 1)
    leaver.cancel()
    await asyncio.wait([leaver])  # cancelled, before a place is free for its check
    assert leaver.cancelled()
    for gate in gates:
        gate.touch()
    await asyncio.gather(*waiting, plan(tokenizer, check, asks_for("follow")))
    assert not notes.exists()


async def test_an_engine_that_keeps_all_guides_gets_no_more_than_its_budget(
    check: GuideValidator, tmp_path: Path
) -> None:
    note = tmp_path / "note"  # of trials
    sent, new = Guide("regex", "sent before"), Guide("regex", f"note {note}")
    kept = KeptGuides(1 << 20)
    kept.add(Guide("regex", sent.text), 1 << 20)
    gate = GuideGate(check, kept)
    with pytest.raises(QueueFull, match="response_format is a new guide, and") as refused:
        await gate.admit(asks_for(new.text), new)
    assert refused.value.status == 429
    assert "serving.guide_memory_bytes" in refused.value.message
    assert (await gate.admit(asks_for(sent.text), sent)).guide == sent
    assert not note.exists()
    gate.engine_is_gone()
    await gate.admit(asks_for(new.text), new)
    assert note.exists()


async def test_a_guide_too_large_for_the_rest_of_the_budget_is_refused(
    check: GuideValidator,
) -> None:
    gate = GuideGate(check, KeptGuides(12 << 20))
    for order, fits in [("hold 8", True), ("hold 9", False), ("follow", True)]:
        request = asks_for(order)
        assert request.guide is not None
        with nullcontext() if fits else pytest.raises(QueueFull):
            await gate.admit(request, request.guide)


@pytest.mark.parametrize(
    ("engine", "backend", "version", "keeps"),
    [
        (COMPILED, "xgrammar", "0.21.0", True),
        (COMPILED, "xgrammar", "1.0.0", True),
        (COMPILED, "xgrammar", None, True),
        (COMPILED, "xgrammar", "1.2.1", False),
        (CHECKPOINT, "xgrammar", "1.0.0", True),
        (CHECKPOINT, "llguidance", "1.0.0", False),
        (ENGINE, None, None, False),
    ],
)
def test_only_engines_that_free_no_guides_have_a_budget(
    engine: Engine, backend: str | None, version: str | None, keeps: bool
) -> None:
    arguments = {"guided_decoding_backend": backend}
    of_checkpoint = engine is CHECKPOINT
    engine = replace(engine, llm_args=arguments) if of_checkpoint else engine
    settings = Settings.model_validate(
        {"engine_repository": "e", "runtime": arguments if engine is COMPILED else {}}
    )
    assert (kept_guides_for(Deployment(settings, engine, None, version)) is not None) == keeps


def test_without_guided_decoding_there_is_no_validator() -> None:
    assert guide_check_for(COMPILED, None, {}, 4.0) is None
