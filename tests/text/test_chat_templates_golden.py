"""The ids of conversations equal those of `transformers` for the templates of seven families."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from jinja2 import TemplateError
from tests.text.chat_families import DIALOGUE, FAMILIES, SYSTEM, Family
from tests.text.tokenizer_zoo import CORPUS, smollm2_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.gguf_tokenizer import read_gguf_tokenizer
from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "größe",
        "description": "Wie groß? <b>&'\"",
        "parameters": {"type": "object", "properties": {"von": {"type": "string"}}},
    },
}
TOOL_TURNS = [
    {"role": "user", "content": "Wie groß ist π?"},
    {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "abcdefghi",
                "type": "function",
                "function": {"name": "größe", "arguments": {"von": "π"}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "abcdefghi", "name": "größe", "content": "3.14"},
]
OWN_OPTIONS = {"add_generation_prompt", "continue_final_message", "tools"}
Pair = tuple[TextTokenizer, Any]
"""Ours, and the one of transformers."""


def _save(folder: Path, backend: Tokenizer, **config: Any) -> None:
    backend.save(str(folder / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")


def _both(folder: Path) -> Pair:
    from transformers import PreTrainedTokenizerFast  # takes a second

    return load_tokenizer(folder), PreTrainedTokenizerFast.from_pretrained(folder)


def _trained(family: Family) -> Tokenizer:
    """Train a byte-level tokenizer with the family's tokens and BOS."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=list(family.tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    if family.bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A",
            special_tokens=[(family.bos, backend.token_to_id(family.bos))],
        )
    return backend


@cache
def pair(name: str) -> Pair:
    """Load our tokenizer and that of `transformers` from one folder."""
    with TemporaryDirectory() as folder:
        if name == "chatml":
            parts = read_gguf_tokenizer(smollm2_file())
            template = parts.chat_templates["default"]
            _save(Path(folder), parts.backend, chat_template=template, **parts.named_tokens)
        else:
            family = FAMILIES[name]
            named = {"bos_token": family.bos, "eos_token": family.eos}
            _save(Path(folder), _trained(family), chat_template=family.template, **named)
        return _both(Path(folder))


def ids(name: str, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    """Return our ids; fail unless they equal those of `transformers`."""
    ours, theirs = pair(name)
    options.setdefault("add_generation_prompt", True)
    own = {name: options.pop(name) for name in OWN_OPTIONS & options.keys()}
    control = "<s>" in str(messages)  # the reference interprets these
    got = ours.apply_chat_template(messages, **own, variables=options, control_tokens=control)
    wanted = theirs.apply_chat_template(
        messages, tokenize=True, return_dict=False, **own, **options
    )
    assert got == wanted
    return got


NAMES = sorted([*FAMILIES, "chatml"])
WITH_SYSTEM = [name for name in NAMES if name == "chatml" or FAMILIES[name].has_system]
WITH_TOOLS = [name for name, family in FAMILIES.items() if family.has_tools]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_prompt_is_the_published_one(name: str) -> None:
    ours, _ = pair(name)
    prompt = FAMILIES[name].prompt
    assert ids(name, DIALOGUE) == ours.encode(prompt, add_special_tokens=False)


def test_the_chatml_prompt_is_the_published_one() -> None:
    ours, _ = pair("chatml")
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    got = ids("chatml", [SYSTEM, {"role": "user", "content": "Hi"}], add_generation_prompt=False)
    assert got == ours.encode(prompt, add_special_tokens=False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("begin", [True, False])
def test_turns(name: str, turns: int, begin: bool) -> None:
    """End with a turn of the assistant if there are two."""
    assert ids(name, DIALOGUE[:turns], add_generation_prompt=begin)


GOING_ON = ["The", "The answer is ", " 3.14\n", "e", "<s>", "assistant"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("begun", GOING_ON)
def test_continuing_the_last_message(name: str, begun: str) -> None:
    ours, _ = pair(name)
    messages = [DIALOGUE[0], {"role": "assistant", "content": begun}]
    got = ids(name, messages, add_generation_prompt=False, continue_final_message=True)
    assert ours.decode(got, skip_special_tokens=False).rstrip().endswith(begun.strip())


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_there_must_be_a_text_to_go_on_in(content: str | None) -> None:
    ours, _ = pair("chatml")
    messages = [DIALOGUE[0], {"role": "assistant", "content": content}]
    with pytest.raises(InvalidRequest, match="no text to continue") as refused:
        ours.apply_chat_template(messages, continue_final_message=True)
    assert refused.value.param == "messages"


@pytest.mark.parametrize("name", WITH_SYSTEM)
def test_a_system_message(name: str) -> None:
    ours, _ = pair(name)
    assert "Be brief." in ours.decode(ids(name, [SYSTEM, *DIALOGUE]))


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_tools(name: str) -> None:
    ours, _ = pair(name)
    got = ids(name, TOOL_TURNS, tools=[TOOL])
    assert "größe" in ours.decode(got)
    assert "<b>&'" in ours.decode(got)


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_system_message_before_calls_is_shown(name: str) -> None:
    """Mistral's template shows it before the last message only, and only if that is the user's."""
    ours, theirs = pair(name)
    messages = [SYSTEM, *TOOL_TURNS]
    prompt = ours.decode(ours.apply_chat_template(messages, tools=[TOOL]))
    assert "Be brief." in prompt
    wanted = theirs.apply_chat_template(messages, tools=[TOOL], tokenize=False)
    assert ("Be brief." in wanted) == (name != "mistral")


def test_a_variable_of_the_template() -> None:
    ours, _ = pair("qwen")
    assert "</think>" in ours.decode(ids("qwen", DIALOGUE, enable_thinking=False))
    assert "</think>" not in ours.decode(ids("qwen", DIALOGUE, enable_thinking=True))


@pytest.mark.parametrize("name", [name for name in sorted(FAMILIES) if FAMILIES[name].bos])
def test_bos_is_there_as_often_as_the_template_writes_it(name: str) -> None:
    family, (ours, _) = FAMILIES[name], pair(name)
    assert ours.bos_id is not None
    got = ids(name, DIALOGUE)
    assert got.count(ours.bos_id) == family.prompt.count(str(family.bos))
    assert got[:2].count(ours.bos_id) <= 1
    assert ours.encode("Hi").count(ours.bos_id) == 1


@pytest.mark.parametrize(
    ("name", "messages", "reason"),
    [
        ("gemma", [SYSTEM, *DIALOGUE], "System role not supported"),
        ("gemma", DIALOGUE[1:], "Roles must alternate"),
        ("llama-2", DIALOGUE[1:], "Roles must alternate"),
    ],
)
def test_what_a_template_refuses_is_written_in_another_form(
    name: str, messages: list[dict[str, Any]], reason: str
) -> None:
    ours, theirs = pair(name)
    with pytest.raises(TemplateError, match=reason):
        theirs.apply_chat_template(messages)
    prompt = ours.decode(ours.apply_chat_template(messages))
    assert all(message["content"].strip() in prompt for message in messages)


def test_a_model_without_a_template_names_the_remedy(tmp_path: Path) -> None:
    _save(tmp_path, _trained(FAMILIES["llama-2"]), bos_token="<s>", eos_token="</s>")
    ours, theirs = _both(tmp_path)
    with pytest.raises(ValueError, match="chat_template"):
        theirs.apply_chat_template(DIALOGUE)
    with pytest.raises(InvalidRequest, match="no chat template; send a prompt") as refused:
        ours.apply_chat_template(DIALOGUE)
    assert "tokenizer_repository" in refused.value.message
