from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.gguf_writer import header
from tests.text.tokenizer_zoo import tokenizer_of
from tokenizers import Tokenizer

from trtllm_truss.errors import ArtifactError, InvalidRequest
from trtllm_truss.serving.preparation import write_tokenizer_info
from trtllm_truss.text import tokenizer_files
from trtllm_truss.text.decoding import LibraryPanic
from trtllm_truss.text.growth import growth
from trtllm_truss.text.tokenizer import load_tokenizer
from trtllm_truss.text.tokenizer_parts import MAX_ADDED_TOKENS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer folder with `<unk>`, `<s>`, `</s>` and the ordinary token `<think>`."""
    tokenizer_of("llama-2")._backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content))


def test_tokenizer_json_alone_is_enough(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.eos_ids, tokenizer.bos_id, tokenizer.pad_id) == ((), None, None)
    assert tokenizer.special_ids == {0, 1, 2}
    ids = tokenizer.encode("the fox")
    assert ids[0] == 1
    assert tokenizer.encode("the fox", add_special_tokens=False) == ids[1:]
    assert tokenizer.decode(ids) == "the fox"


@pytest.mark.parametrize("eos_token", ["</s>", {"__type": "AddedToken", "content": "</s>"}])
@pytest.mark.parametrize(("listed", "expected"), [([7, 2], (2, 7)), (7, (2, 7)), (None, (2,))])
def test_all_end_ids_are_found(
    folder: Path, eos_token: Any, listed: Any, expected: tuple[int, ...]
) -> None:
    write(folder, "tokenizer_config.json", {"eos_token": eos_token, "bos_token": "<s>"})
    write(folder, "special_tokens_map.json", {"pad_token": "</s>"})
    write(folder, "generation_config.json", {"eos_token_id": listed})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_ids == expected
    assert (tokenizer.bos_id, tokenizer.pad_id) == (1, 2)


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        ({"eos_token_id": [0, 2]}, {"do_sample": True, "top_k": 64}, (0, 2)),
        ({"eos_token_id": 2}, {"eos_token_id": None}, (2,)),
        ({"eos_token_id": 2}, {"eos_token_id": []}, (2,)),
        ({"text_config": {"eos_token_id": [1, 2]}}, None, (1, 2)),
        ({"text_config": {"eos_token_id": 1}, "eos_token_id": 2}, {"top_p": 0.5}, (2,)),
        ({"text_config": None}, None, ()),
        ({"eos_token_id": 2}, {"eos_token_id": 0}, (0,)),
    ],
)
def test_ends_are_those_of_the_first_file_that_names_some(
    folder: Path, config: Any, generation: Any, ends: tuple[int, ...]
) -> None:
    write(folder, "config.json", config)
    if generation is not None:
        write(folder, "generation_config.json", generation)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.eos_ids == ends
    assert tokenizer.sampling == {
        name: value for name, value in (generation or {}).items() if name.startswith("top")
    }


def test_wrong_ends_of_a_part_of_a_model_are_named(folder: Path) -> None:
    write(folder, "config.json", {"text_config": {"eos_token_id": "x"}})
    with pytest.raises(ArtifactError, match=r"text_config\.eos_token_id\[0\] is \"x\""):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("fields", "begins", "ends"),
    [
        ({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True}, True, False),
        ({"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}, True, False),
        ({"tokenizer_class": "GemmaTokenizerFast", "add_bos_token": True}, True, False),
        ({"tokenizer_class": "CohereTokenizerFast", "add_bos_token": True}, True, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True}, False, False),
        ({"tokenizer_class": "LlamaTokenizerFast"}, False, False),
        ({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": False}, False, False),
        ({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": None}, False, False),
        ({"add_bos_token": True}, False, False),
    ],
)
@pytest.mark.parametrize("processor", [None, "eos"])
def test_bos_of_add_bos_token(
    folder: Path, fields: dict[str, Any], begins: bool, ends: bool, processor: str | None
) -> None:
    """As transformers 4.57.1 encodes prompts: R1-Distill-Qwen's files have no post-processor."""
    eos = {"type_id": 0, "id": "</s>"}
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": eos}]
    special = {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}
    template = {
        "type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special
    }  # fmt: skip
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["post_processor"] = template if processor else None
    write(folder, "tokenizer.json", stored)
    write(folder, "tokenizer_config.json", {"bos_token": "<s>", **fields})
    tokenizer = load_tokenizer(folder)
    plain = tokenizer.encode("the fox", add_special_tokens=False)
    bos, last = [1] * begins, [2] * (processor is not None)
    assert tokenizer.encode("the fox") == [*bos, *plain, *last]
    assert tokenizer.encode("", add_special_tokens=True) == [*bos, *last]


def test_add_bos_token_false_takes_bos_away(folder: Path) -> None:
    fields = {"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer", "add_bos_token": False}
    with_bos = load_tokenizer(folder).encode("the fox")
    write(folder, "tokenizer_config.json", fields)
    assert load_tokenizer(folder).encode("the fox") == with_bos[1:]


CHAT = [{"role": "user", "content": "x"}]
SHOWN = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("files", "prompt"),
    [
        ({"chat_template.json": {"chat_template": f"a{SHOWN}"}}, "ax"),
        (
            {
                "chat_template.json": {"chat_template": f"a{SHOWN}"},
                "tokenizer_config.json": {"chat_template": f"b{SHOWN}"},
            },
            "bx",
        ),
        (
            {
                "chat_template.json": {"chat_template": f"a{SHOWN}"},
                "tokenizer_config.json": {"chat_template": None},
            },
            "ax",
        ),
        (
            {"chat_template.json": {"chat_template": [{"name": "default", "template": SHOWN}]}},
            "x",
        ),
    ],
)
def test_the_template_of_a_processor_comes_last(
    folder: Path, files: dict[str, Any], prompt: str
) -> None:
    for name, content in files.items():
        write(folder, name, content)
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.apply_chat_template(CHAT)
    assert tokenizer.decode(ids) == prompt


def test_declared_special_tokens_do_not_show(folder: Path) -> None:
    think = load_tokenizer(folder).encode("<think>")[-1]
    assert load_tokenizer(folder).decode([think]) == "<think>"
    write(folder, "special_tokens_map.json", {"additional_special_tokens": ["<think>", "<gone>"]})
    tokenizer = load_tokenizer(folder)
    assert think in tokenizer.special_ids
    assert tokenizer.decode([think]) == ""
    assert tokenizer.vocab_size == tokenizer_of("llama-2").vocab_size


def test_tokens_that_only_the_configuration_knows_are_added(folder: Path) -> None:
    size = load_tokenizer(folder).vocab_size
    declared = {
        str(size): {"content": "<end>", "special": True},
        str(size + 1): {"content": "<tool>", "special": False, "normalized": False},
        str(size + 9): {"content": "<elsewhere>", "special": True},
    }
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": declared})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("<tool><end>", add_special_tokens=False)[-2:] == [size + 1, size]
    assert tokenizer.decode([size, size + 1]) == "<tool>"
    assert tokenizer.vocab_size == size + 2


def test_prompts_are_never_shortened(folder: Path) -> None:
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=100)
    backend.save(str(folder / "tokenizer.json"))
    text = "the quick brown fox jumps"
    assert load_tokenizer(folder).encode(text) == tokenizer_of("llama-2").encode(text)


def test_tokenizer_json_wins_over_gguf(folder: Path) -> None:
    (folder / "model.gguf").write_bytes(header({"tokenizer.ggml.model": "llama"}))
    assert load_tokenizer(folder).decode([]) == ""
    assert load_tokenizer(folder / "model.gguf").special_ids == {0, 1, 2}


def test_broken_text_is_the_callers_fault(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="surrogate") as refused:
        load_tokenizer(folder).encode("a\ud800")
    assert refused.value.param == "prompt"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}'),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default"}]}'),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}'),
        ("chat_template.json", '{"chat_template": 5}'),
        ("chat_template.json", "["),
        ("special_tokens_map.json", "\\"),
        ("generation_config.json", "no"),
    ],
)
def test_broken_files_are_named(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ArtifactError) as refused:
        load_tokenizer(folder)
    assert str(folder) in refused.value.message


@pytest.mark.parametrize(
    ("name", "field", "value", "said"),
    [
        *(
            (file, "eos_token_id", value, said)
            for file in ("generation_config.json", "config.json")
            for value, said in (
                ("x", r"eos_token_id\[0\] is \"x\"; it must be a whole number"),
                (["a"], r"eos_token_id\[0\] is \"a\"; it must be a whole number"),
                ([-1, 2**40], r"eos_token_id\[0\] is -1; it must be at least 0"),
                (2**40, r"is 1099511627776; it must be at most 2147483647"),
                (2**31 - 1, "eos_token_id holds the id 2147483647; the tokenizer's ids end at "),
                (2.5, r"is 2\.5; it must be a whole number"),
                (True, "is true; it must be a whole number"),
                ({"a": 1}, "it must be a whole number"),
                ([0, 1] * 20_000, r"eos_token_id is \[0, 1.*; it must have at most 64 items"),
            )
        ),
        ("generation_config.json", "temperature", "hot", 'is "hot"; it must be a number'),
        ("generation_config.json", "temperature", float("nan"), "it must be a finite number"),
        ("generation_config.json", "temperature", -1, "is -1; it must be at least 0"),
        ("generation_config.json", "min_p", 2, "is 2; it must be at most 1"),
        ("generation_config.json", "top_p", 1.5, r"is 1\.5; it must be at most 1"),
        ("generation_config.json", "top_p", [0.9], "it must be a number"),
        ("generation_config.json", "top_k", 2.5, "it must be a whole number"),
        ("generation_config.json", "top_k", True, "it must be a whole number"),
        ("generation_config.json", "repetition_penalty", 0, "it must be greater than 0"),
        ("generation_config.json", "repetition_penalty", float("inf"), "it must be a finite"),
        *(
            (file, field, value, said)
            for file in ("tokenizer_config.json", "special_tokens_map.json")
            for field, value, said in (
                ("bos_token", 5, "bos_token is 5; it must be a string"),
                ("eos_token", {"content": [1]}, r"eos_token is \[1\]; it must be a string"),
                ("pad_token", "x" * 5000, "it must have at most 4096 characters"),
                ("additional_special_tokens", [["x"]], r"additional_special_tokens\[0\] is"),
                ("added_tokens_decoder", [], "it must be an object"),
                ("added_tokens_decoder", {"-1": {"content": "x"}}, "it must match"),
                ("added_tokens_decoder", {"1" * 5000: {"content": "x"}}, "it must match"),
                ("added_tokens_decoder", {"300": None}, "it must be an object"),
                ("added_tokens_decoder", {"300": {"content": 3}}, r"content is 3; it must be a"),
                ("added_tokens_decoder", {"300": {"content": "x", "special": 1}}, "true or false"),
                ("chat_template", 3, r"chat_template\[0\] is 3"),
                ("chat_template", ["text"], r"chat_template\[0\] is \"text\""),
                ("chat_template", {"name": "default", "template": 1}, "it must be a string"),
            )
        ),
    ],
)
def test_a_wrong_value_is_named(folder: Path, name: str, field: str, value: Any, said: str) -> None:
    write(folder, name, {field: value})
    with pytest.raises(ArtifactError, match=said) as refused:
        load_tokenizer(folder)
    assert refused.value.message.startswith(f"{folder / name}: {field}")
    assert refused.value.message.endswith("Correct it, or name another tokenizer_repository.")
    assert len(refused.value.message) < len(str(folder)) + 400


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"bos_token": None, "chat_template": None, "eos_token": {}}),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": None, "additional_special_tokens": None},
        ),
        ("generation_config.json", {"eos_token_id": None, "temperature": None, "top_k": 2000}),
        ("generation_config.json", {"eos_token_id": [2] * 64, "temperature": 0, "top_p": 1}),
    ],
)
def test_usual_values_are_accepted(folder: Path, name: str, content: Any) -> None:
    write(folder, name, content)
    load_tokenizer(folder)


@pytest.mark.parametrize("token", [{"the": 4_000_000_000}, {"x" * 5000: 300}])
def test_ids_and_tokens_out_of_all_bounds_are_refused(folder: Path, token: dict[str, int]) -> None:
    ((content, token_id),) = token.items()
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]
    added = {"id": token_id, "content": content, **flags}
    vocab = {**vocabulary["vocab"], "zzz": token_id}
    change(folder, model={**vocabulary, "vocab": vocab}, added_tokens=[added])
    with pytest.raises(
        ArtifactError, match=r"has the (id 4000000000|added token \"xxx)"
    ) as refused:
        load_tokenizer(folder)
    assert "tokenizer.json" in refused.value.message
    with pytest.raises(ArtifactError):
        write_tokenizer_info(folder, folder / "info.json")


def charsmap(*texts: str) -> str:
    content = b"".join(text.encode() + b"\0" for text in texts)
    return base64.b64encode(bytes(4) + content).decode()


REPLACED = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}


@pytest.mark.parametrize(
    ("part", "step", "characters"),
    [
        ("normalizer", {**REPLACED, "content": "b" * 300_000}, 300_000),
        ("decoder", {**REPLACED, "content": "b" * 65}, 65),
        ("normalizer", {"type": "Prepend", "prepend": "b" * 65}, 65),
        (
            "normalizer",
            {"type": "Sequence", "normalizers": [{**REPLACED, "content": "a" * 9}] * 2},
            81,
        ),
    ],
)
def test_a_tokenizer_that_makes_much_of_little_is_refused(
    folder: Path, part: str, step: dict[str, Any], characters: int
) -> None:
    change(folder, **{part: step})
    with pytest.raises(ArtifactError, match=f"the {part} .* makes {characters} characters of one"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("content", "expected"), [((), 0), (("a", "\ufdfa" * 3, "bb"), 3), (("b" * 99,), 99)]
)
def test_growth_of_a_map_of_characters(content: tuple[str, ...], expected: int) -> None:
    class Precompiled:
        def __getstate__(self) -> bytes:
            step = {"type": "Precompiled", "precompiled_charsmap": charsmap(*content)}
            return json.dumps(step).encode()

    assert growth(Precompiled()) == expected


def test_text_on_which_an_expression_gives_up_is_the_callers_fault(folder: Path) -> None:
    change(
        folder,
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": "(a+)+$"},
            "behavior": "Isolated",
            "invert": False,
        },
    )
    tokenizer = load_tokenizer(folder)
    with pytest.raises(
        InvalidRequest, match=r"prompt contains text on which .* change or shorten it"
    ):
        tokenizer.encode("a" * 60 + "!")
    assert tokenizer.encode("fox")


@pytest.mark.parametrize(
    "template",
    ["{% for a in b %}" * 30 + "{% endfor %}" * 30, "{{ " + "(" * 5000 + ")" * 5000 + " }}"],
)
def test_a_template_that_cannot_be_compiled_is_named(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ArtifactError, match=r"chat template in .* is not valid Jinja"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "takes more",
        ),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ 'a' * 10**9 }}", "too large"),
    ],
)
def test_a_template_that_has_no_end_fails_the_start(
    folder: Path, template: str, reason: str
) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ArtifactError, match=rf"chat template in .* cannot be used: .*{reason}"):
        load_tokenizer(folder)


def test_a_template_that_wants_another_conversation_is_loaded(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('system first') }}")
    assert load_tokenizer(folder).chat_template


@pytest.mark.parametrize("files", [(), ("a.gguf", "b.gguf"), ("tokenizer.model",)])
def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path, files: tuple[str, ...]) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ArtifactError, match="tokenizer_repository"):
        load_tokenizer(tmp_path)


def change(folder: Path, **parts: Any) -> None:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **parts}))


def _added(count: int) -> list[dict[str, Any]]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return [{"id": 1000 + n, "content": f"<|x{n}|>", **flags} for n in range(count)]


def test_too_many_added_tokens_are_refused_before_they_are_loaded(folder: Path) -> None:
    # 131,000 of them take the library half a minute.
    change(folder, added_tokens=_added(2 * MAX_ADDED_TOKENS + 1))
    with pytest.raises(ArtifactError, match=r"tokenizer\.json has more than 65,536 added tokens"):
        load_tokenizer(folder)


def test_one_added_token_too_many_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(folder, added_tokens=_added(10))
    size = len(load_tokenizer(folder)._backend.get_added_tokens_decoder())
    monkeypatch.setattr(tokenizer_files, "MAX_ADDED_TOKENS", size)
    load_tokenizer(folder)
    monkeypatch.setattr(tokenizer_files, "MAX_ADDED_TOKENS", size - 1)
    with pytest.raises(ArtifactError, match=rf"has {size} added tokens; at most {size - 1} are"):
        load_tokenizer(folder)


def test_tokens_that_only_the_configuration_lists_are_added_at_once(folder: Path) -> None:
    size = load_tokenizer(folder).vocab_size
    declared = {str(size + n): {"content": f"<|x{n}|>"} for n in range(MAX_ADDED_TOKENS // 16)}
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": declared})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.vocab_size == size + len(declared)
    assert tokenizer.encode("<|x7|>", False) == [size + 7]
    many = {str(n): {"content": f"<|x{n}|>"} for n in range(MAX_ADDED_TOKENS + 1)}
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": many})
    with pytest.raises(ArtifactError, match=r"added_tokens_decoder .* at most 65536 items"):
        load_tokenizer(folder)


def test_a_post_processor_that_adds_much_is_refused(folder: Path) -> None:
    many = [{"SpecialToken": {"id": "<s>", "type_id": 0}}] * 65
    change(
        folder,
        post_processor={
            "type": "TemplateProcessing",
            "single": [*many, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
    )
    with pytest.raises(ArtifactError, match=r"adds 65 tokens to each prompt; at most 64 are"):
        load_tokenizer(folder)


def test_a_panic_logs_no_backtrace(folder: Path) -> None:
    change(folder, normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    program = (
        "import pathlib, sys\nfrom trtllm_truss.text.tokenizer import load_tokenizer\n"
        "try: load_tokenizer(pathlib.Path(sys.argv[1]))\nexcept Exception: pass"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, folder],
        env={**os.environ, "RUST_BACKTRACE": "full"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "panicked" in ended.stderr
    assert "stack backtrace" not in ended.stderr


def test_a_panic_while_loading_is_one_sentence(folder: Path) -> None:
    change(folder, normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    with pytest.raises(ArtifactError, match=r"panicked: Precompiled.*tokenizer_repository"):
        load_tokenizer(folder)


def test_a_panic_in_use_is_an_exception(folder: Path) -> None:
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    ids = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    *_, letter = sorted(
        (token for token in ids if len(token) == 1 and token.isalpha()), key=ids.get
    )
    change(
        folder,
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<gone>", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        },
        decoder={"type": "Strip", "content": letter, "start": 0, "stop": 3},
    )
    tokenizer = load_tokenizer(folder)
    with pytest.raises(LibraryPanic, match="no entry found"):
        tokenizer.encode("the fox")
    with pytest.raises(LibraryPanic, match="index out of bounds"):
        tokenizer.decode([ids[letter]])
    decoding = tokenizer.start_decoding()
    decoding.push([ids[letter]])
    with pytest.raises(LibraryPanic):
        decoding.flush()
