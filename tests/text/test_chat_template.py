from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from tests.text.tokenizer_zoo import sentencepiece_backend, tokenizer_of, wrap
from tokenizers import decoders

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.chat_template import ChatTemplate

HELLO = [{"role": "user", "content": "Hello 🤖"}]


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source).render(HELLO, variables)


def test_smollm2() -> None:
    tokenizer = tokenizer_of("smollm2")
    ids = tokenizer.apply_chat_template(HELLO)
    prompt = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHello 🤖<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids == tokenizer.encode(prompt, add_special_tokens=False)
    assert ids.count(1) == 3
    shorter = tokenizer.apply_chat_template(HELLO, add_generation_prompt=False)
    assert ids[: len(shorter)] == shorter


def test_bos_is_there_once() -> None:
    backend = sentencepiece_backend(decoders.ByteFallback(), prefix=True)
    backend.add_special_tokens(["<s>"])
    templates = {"default": "{{ bos_token }}{{ messages[0]['content'] }}"}
    tokenizer = wrap(backend, named_tokens={"bos_token": "<s>"}, chat_templates=templates)
    assert tokenizer.encode("Hello").count(1) == 1
    assert tokenizer.apply_chat_template(HELLO).count(1) == 1


def test_a_template_for_tools_is_used_with_tools() -> None:
    templates = {
        "default": "{{ messages[0].content }}",
        "tool_use": "{{ tools[0].function.name }} {{ mode }} {{ messages[0].content }}",
    }
    tokenizer = wrap(tokenizer_of("byte-level")._backend, chat_templates=templates)
    assert tokenizer.decode(tokenizer.apply_chat_template(HELLO)) == "Hello 🤖"
    ids = tokenizer.apply_chat_template(
        HELLO,
        tools=[{"type": "function", "function": {"name": "search"}}],
        variables={"mode": "fast"},
    )
    assert tokenizer.decode(ids) == "search fast Hello 🤖"


def test_a_model_without_template_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="no chat template") as refused:
        tokenizer_of("unigram").apply_chat_template(HELLO)
    assert refused.value.param == "messages"


def test_names_that_templates_may_use() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)
    assert render("{{ x | tojson }}", x={"ü<": 1}) == '{"ü<": 1}'
    assert render("{{ x | tojson(indent=2) }}", x=[1]) == json.dumps([1], indent=2)
    assert (
        render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "1"
    )
    assert render("a{% generation %}b{{ 1 }}{% endgeneration %}c") == "ab1c"
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"
    assert render("{{ missing }}") == ""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content.nothing.more }}", "no attribute"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_refuses_is_the_callers_fault(source: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as refused:
        render(source)
    assert refused.value.param == "messages"
    assert "Hello" not in refused.value.message


def test_broken_text_in_a_message_is_the_callers_fault() -> None:
    with pytest.raises(InvalidRequest, match="surrogate") as refused:
        tokenizer_of("smollm2").apply_chat_template([{"role": "user", "content": "\ud800"}])
    assert refused.value.param == "messages"


def test_a_template_that_leaves_out_the_last_message_cannot_go_on_in_it() -> None:
    template = ChatTemplate("{{ messages[0]['content'] }}")
    with pytest.raises(InvalidRequest, match="omits or changes the last"):
        template.render_open([*HELLO, {"role": "assistant", "content": "So"}], {})
