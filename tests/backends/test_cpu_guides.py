"""Answers that match a guide, and guides that the engine must never see."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai
import pytest
from backend_requests import END_ID, PROMPT, Caller, request
from waiting import settles

from trtllm_truss.backends.openvino_genai.engine import Engine
from trtllm_truss.backends.openvino_genai.guide_check import GuideCheck
from trtllm_truss.backends.openvino_genai.guides import Guide
from trtllm_truss.backends.openvino_genai.model_files import find_model
from trtllm_truss.backends.openvino_genai.parameters import EngineSettings
from trtllm_truss.backends.openvino_genai.refusal import Refusal
from trtllm_truss.backends.openvino_genai.scheduler import Scheduler

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"enum": [7, 30]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SAMPLED = {"runtime_top_k": 50, "temperature": 1.5, "seed": np.array([5], np.uint64)}
NEVER_DONE = "(([a-z]{0,1000}){0,1000}){0,1000}"
DEEP = "(" * 100_000 + "a" + ")" * 100_000


@pytest.fixture(scope="module")
def decode(model_folder: Path) -> Any:
    return openvino_genai.Tokenizer(find_model(model_folder).path).decode


@pytest.fixture(scope="module")
def guided(engine: Engine, model_folder: Path) -> Iterator[Scheduler]:
    """One scheduler for all tests, and so one program that checks guides."""
    settings = EngineSettings(model_folder, max_batch_size=8, cancellation_check_s=0.005)
    scheduler = Scheduler(engine, settings, on_death=lambda: pytest.fail("the engine died"))
    scheduler.start()
    yield scheduler
    scheduler.close()


def submit(scheduler: Scheduler, kind: str, text: str = "", **inputs: Any) -> Caller:
    caller = Caller()
    inputs = {"streaming": True, "end_id": END_ID, "output_len": 64, **inputs}
    inputs["guided_decoding_guide_type"] = np.array([[kind.encode()]], object)
    inputs["guided_decoding_guide"] = np.array([[text.encode()]], object)
    scheduler.submit(request(**inputs), caller)
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


@pytest.mark.parametrize("log_probs", [False, True])
def test_an_answer_is_what_its_schema_says(guided: Scheduler, decode: Any, log_probs: bool) -> None:
    outputs = ("output_ids", "sequence_length", "output_log_probs")
    inputs = {"return_log_probs": log_probs, "outputs": outputs, "exclude_input_in_output": True}
    caller = submit(guided, "json_schema", json.dumps(PERSON), streaming=False, **inputs).wait()
    person = json.loads(decode(caller.tokens))

    assert set(person) == {"name", "age"}
    assert person["age"] in (7, 30)
    if log_probs:
        values = caller.responses[0]["output_log_probs"]
        assert values.shape == (1, 1, len(caller.tokens))
        assert np.isfinite(values).all()


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
        ("json_schema", '{"$ref": "#/definitions/x"}', "Cannot find field definitions in"),
        ("regex", DEEP, "it is too large or too deeply nested; simplify it."),
    ],
)
def test_a_guide_that_cannot_be_followed_harms_nobody_else(
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


def test_a_check_that_takes_too_long_is_ended(guided: Scheduler) -> None:
    stopped = submit(guided, "regex", NEVER_DONE, request_id="checked")
    refused = submit(guided, "regex", NEVER_DONE)
    behind = submit(guided, "regex", "(ab|cd)")
    guided.stop_request("checked")

    assert stopped.wait().tokens == []
    assert refused.wait().error is not None
    assert "it takes more than 4 s to compile" in refused.error
    assert behind.wait().error is None  # in a new program: the first one ended over the guide
    assert (stopped.finals, stopped.error) == (1, None)


def test_nothing_is_left_behind(model_folder: Path) -> None:
    guides = GuideCheck(model_folder)
    guides.check(Guide("regex", "a")).result(60)
    program = guides._program
    assert program is not None
    busy, waiting = (guides.check(Guide("regex", text)) for text in (NEVER_DONE, "b"))
    while not busy.running():
        time.sleep(0.01)
    guides.close()

    assert isinstance(busy.exception(), Refusal)
    assert waiting.cancelled()
    assert program.returncode is not None


def test_what_is_not_the_callers_fault_is_not_a_refusal(tmp_path: Path) -> None:
    guides = GuideCheck(tmp_path)
    error = guides.check(Guide("regex", "a")).exception(60)
    guides.close()

    assert isinstance(error, RuntimeError)
    assert "the program for it ended (1)" in str(error)


def test_the_program_ends_with_the_engine(model_folder: Path) -> None:
    code = (
        "import sys, os, pathlib\n"
        "from trtllm_truss.backends.openvino_genai.guide_check import GuideCheck, Guide\n"
        "guides = GuideCheck(pathlib.Path(sys.argv[1]))\n"
        "guides.check(Guide('regex', 'a')).result()\n"
        "print(guides._program.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(model_folder)], stdout=subprocess.PIPE, check=False
    )
    program = Path(f"/proc/{int(done.stdout)}")
    assert settles(lambda: not program.exists())
