"""Guides for TensorRT-LLM, checked with the XGrammar of its image."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.paths import FAKES
from tests.support.smollm2 import write_smollm2_tokenizer
from tests.support.waiting import PATIENCE_S

from trtllm_truss.guides import compiler_worker
from trtllm_truss.guides.guide import CheckFailed, GuideFault
from trtllm_truss.guides.json_schema import convert_schema
from trtllm_truss.guides.validator import GuideValidator
from trtllm_truss.requests import Guide, Language
from trtllm_truss.serving.preparation import write_tokenizer_info

WORKER = ["-m", "trtllm_truss.guides.compiler_worker"]
TORCH_STUB = FAKES / "torch"
LARGE = "with its repetitions written out it has more than 100000 parts; lower their counts."
SCHEMA = {
    "type": "object",
    "properties": {
        f"field_{number}": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{1,6}$"},
                "list": {"type": "array", "items": {"type": "number"}, "maxItems": 50},
                "kind": {"enum": ["a", "b", "large"]},
            },
            "required": ["text"],
        }
        for number in range(20)
    },
}


@pytest.fixture(scope="module")
def info_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("xgrammar")
    file = folder / "info.json"
    write_tokenizer_info(write_smollm2_tokenizer(folder / "tokenizer"), file)
    return file


@pytest.fixture(scope="module")
def guides(info_file: Path) -> Iterator[GuideValidator]:
    if importlib.util.find_spec("xgrammar") is None:
        pytest.skip("xgrammar is not installed")
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("torch") is None:
            patch.setattr(sys, "path", [str(TORCH_STUB), *sys.path])
        check = GuideValidator([*WORKER, str(info_file)], compile_limit_s=1)
        assert check.check(Guide("regex", "a")).exception(PATIENCE_S) is None
        yield check
        check.close()


def fault_of(guides: GuideValidator, language: Language, text: str) -> str | None:
    error = guides.check(Guide(language, text)).exception(PATIENCE_S)
    assert error is None or isinstance(error, GuideFault), error
    return error and str(error)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("regex", "(yes|no)"),
        ("regex", r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}"),
        ("regex", "a{0}"),
        ("ebnf_grammar", 'root ::= "left" | "right"'),
        ("ebnf_grammar", 'root ::= root "+" root | [0-9]+ | "(" root ")"'),
        ("json_schema", json.dumps(SCHEMA)),
        ("json_schema", '{"type": "object"}'),
        ("json_schema", '{"type": "array", "items": {"$ref": "#"}}'),
    ],
)
def test_good_guides_pass(guides: GuideValidator, language: Language, text: str) -> None:
    assert fault_of(guides, language, text) is None


def test_a_reference_to_another_document_is_refused(guides: GuideValidator) -> None:
    schema = '{"properties": {"a": {"$ref": "file:///etc/passwd"}}, "required": ["a"]}'
    assert fault_of(guides, "json_schema", schema) == (
        "it has $ref 'file:///etc/passwd', which is not followed; refer to '#', or to a part of "
        "the schema by '#/…'."
    )


@pytest.mark.parametrize("fixes_blanks", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        json.dumps(SCHEMA),
        '{"const": "\\u00f6zür 🤖"}',
        '{"type": "number", "maximum": 13.5}',
        '{"type": "string", "pattern": "^(yes|no)$", "maxLength": 3}',
    ],
)
def test_a_schema_becomes_a_grammar(guides: GuideValidator, text: str, fixes_blanks: bool) -> None:
    """Ask twice: the second answer is remembered."""
    asked = Guide("json_schema", text, fixes_blanks=fixes_blanks)
    first, again = (guides.check(asked).result(PATIENCE_S).guide for _ in range(2))
    assert first == again
    assert first == Guide("ebnf_grammar", convert_schema(text, any_blanks=not fixes_blanks).grammar)
    assert guides.check(first).result(PATIENCE_S).guide == first


def test_a_strict_schema_is_kept_or_refused(
    guides: GuideValidator, caplog: pytest.LogCaptureFixture
) -> None:
    text = '{"type": "string", "pattern": "(?=s3cr3t)"}'
    assert str(guides.check(Guide("json_schema", text, is_strict=True)).exception(PATIENCE_S)) == (
        "it is strict, but pattern '(?=s3cr3t)' (it has (?=) has no effect; leave it out, or send "
        "strict: false."
    )
    with caplog.at_level("INFO"):
        guides.check(Guide("json_schema", text)).result(PATIENCE_S)
    assert (
        "A schema has pattern, which the output follows not at all or only in part" in caplog.text
    )
    assert "s3cr3t" not in caplog.text
    kept = Guide("json_schema", '{"type": "string", "pattern": "a"}', is_strict=True)
    assert guides.check(kept).result(PATIENCE_S).guide.language == "ebnf_grammar"


def test_a_strict_part_is_kept_or_refused(guides: GuideValidator) -> None:
    """Of several functions only the strict ones must be kept whole."""
    kept, unkept = '{"type": "object"}', '{"type": "object", "not": {}}'
    whole = f'{{"anyOf": [{kept}, {unkept}]}}'
    strict = Guide("json_schema", whole, strict_parts=(("the function f", unkept),))
    assert str(guides.check(strict).exception(PATIENCE_S)) == (
        "the function f is strict, but not has no effect; leave it out, or send strict: false."
    )
    mixed = strict._replace(strict_parts=(("the function f", kept),))
    assert guides.check(mixed).result(PATIENCE_S).guide.language == "ebnf_grammar"


def test_a_bad_schema_with_fixed_blanks_fails(guides: GuideValidator) -> None:
    bad = Guide("json_schema", '{"type": "nonsense"}', fixes_blanks=True)
    assert 'Unsupported type "nonsense"' in str(guides.check(bad).exception(PATIENCE_S))


@pytest.mark.parametrize(
    ("language", "text", "fault"),
    [
        ("regex", "[" * 65_536, "Regex parsing error at position 65537: Unclosed '['"),
        ("regex", "(yes", "Regex parsing error at position 5: The parenthesis is not closed"),
        ("ebnf_grammar", "root ::= bar", 'EBNF parser error at line 1, column 10: Rule "bar" is'),
        ("json_schema", '{"type": "nonsense"}', 'Unsupported type "nonsense"'),
        ("json_schema", "{", "it is not JSON (Expecting property name"),
        ("regex", "Größe", "it has 'ße', two characters that XGrammar reads as one"),
        ("regex", "((a|b1){1,300}c?){1,301}", LARGE),
        ("regex", "(" * 30_000 + "a" + ")" * 30_000, "it is nested more than 100 deep"),
        ("regex", "[a-z ]{1,5000}", "it takes more than 1 s to compile; simplify it."),
        ("regex", "([a-z]{0,100}){0,100}", ""),
        ("regex", "a\0b", "it has the character U+0000"),
        ("ebnf_grammar", 'root ::= "a" x\nx ::= x', "no text fits it: root never ends"),
        ("ebnf_grammar", "root ::= []", ""),
        ("json_schema", '{"$ref": "#"}', "no text fits it: # never ends"),
        ("json_schema", '{"type": "number", "minimum": -1e400}', "it has a number that cannot be"),
        ("json_schema", '{"type": "integer", "minimum": 3, "maximum": 2}', "no integer of at most"),
        ("ebnf_grammar", 'root ::= [^"] | root root | root root root', ""),
    ],
)
def test_bad_guides_fail(guides: GuideValidator, language: Language, text: str, fault: str) -> None:
    found = fault_of(guides, language, text)
    assert found is not None
    assert found.startswith(fault)


def test_a_guide_that_allows_no_token_fails(guides: GuideValidator, tmp_path: Path) -> None:
    """Leave out the check of its text, which finds the known ones."""
    file = tmp_path / "worker.py"
    file.write_text(
        "from trtllm_truss.guides import compiler_worker\n"
        "compiler_worker.find_endless = lambda guide: None\n"
        "compiler_worker.main()\n"
    )
    unread = GuideValidator([str(file), guides._program[-1]])
    try:
        for text in ("root ::= root", 'root ::= "a" x\nx ::= x'):
            found = fault_of(unread, "ebnf_grammar", text)
            assert found == "no text fits it: in some place it allows no token; give it one."
    finally:
        unread.close()


@pytest.fixture
def program_that_lacks_xgrammar(tmp_path: Path) -> str:
    code = (
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'xgrammar' else find(name)\n"
        "from trtllm_truss.guides.compiler_worker import main\n"
        "main()\n"
    )
    file = tmp_path / "worker.py"
    file.write_text(code)
    return str(file)


def test_without_xgrammar_the_size_is_checked(program_that_lacks_xgrammar: str) -> None:
    guides = GuideValidator([program_that_lacks_xgrammar, "no/such/file"])
    try:
        assert fault_of(guides, "regex", "(") is None
        assert fault_of(guides, "regex", "((a|b1){1,300}c?){1,301}") == LARGE
    finally:
        guides.close()


def test_with_an_xgrammar_that_fails_nothing_passes(info_file: Path, tmp_path: Path) -> None:
    (tmp_path / "xgrammar.py").write_text("raise ImportError('no torch')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(tmp_path), *sys.path])
        guides = GuideValidator([*WORKER, str(info_file)])
        error = guides.check(Guide("regex", "a")).exception(PATIENCE_S)
    guides.close()
    assert isinstance(error, CheckFailed)


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    monkeypatch.setattr(compiler_worker, "_STUCK_S", 0.01)
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def test_a_check_that_uses_no_cpu_time_is_ended(sleeping: subprocess.Popen[bytes]) -> None:
    compiler_worker._end_if_stuck(sleeping.pid)
    assert sleeping.wait() == -signal.SIGALRM


def test_a_check_that_waits_for_a_processor_goes_on(
    sleeping: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine gives a process of low priority a slice now and then."""
    used = [number / 1000 for number in range(20)]
    monkeypatch.setattr(
        compiler_worker, "_used_s", lambda _: used.pop(0) if len(used) > 1 else used[0]
    )
    compiler_worker._end_if_stuck(sleeping.pid)
    assert sleeping.wait() == -signal.SIGALRM
    assert len(used) == 1
