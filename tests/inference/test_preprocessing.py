"""Conversion of requests to engine requests, and errors in the caller's terms."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from tests.engines.engine_configs import listing, new_config
from tests.fakes.engine import ENGINE
from tests.support.inspection import inspect_config

from trtllm_truss.engines.deployment import Deployment
from trtllm_truss.errors import ContextLengthExceeded, InvalidRequest, RequestError
from trtllm_truss.inference.preprocessing import (
    Capabilities,
    PreparedRequest,
    Preprocessor,
    validate_capabilities,
)
from trtllm_truss.request_fields import Sampling
from trtllm_truss.requests import REST_OF_CONTEXT, ChatFormat, GenerationRequest, Guide
from trtllm_truss.settings.model import Settings
from trtllm_truss.text.tokenizer import TextTokenizer

ALL = Capabilities(guides=True, adapters=True, max_beam_width=2)
FEW = Capabilities(
    max_beam_width=2, refused_fields={"bad_words": ENGINE.why_refused("bad_words") or ""}
)
DRAWS = Sampling(temperature=1.0)
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]


async def plans(
    tokenizer: TextTokenizer, capabilities: Capabilities = ALL, **fields: Any
) -> list[PreparedRequest]:
    request = GenerationRequest(**{"prompt": "Hi there", "max_tokens": 5, **fields})
    return await Preprocessor(ENGINE, tokenizer, capabilities).prepare(request, map(str, count()))


async def test_engine_request_fields(tokenizer: TextTokenizer) -> None:
    guide = Guide("regex", "a+")
    (plan,) = await plans(tokenizer, guide=guide, lora_task_id=3, token_details=True)
    sent = plan.engine_request
    assert (sent.guide, sent.lora_task_id, sent.return_log_probs) == (guide, 3, True)
    assert sent.streaming
    (plan,) = await plans(tokenizer, beam_width=2)
    assert not plan.engine_request.streaming


@pytest.mark.parametrize(
    ("changes", "is_repeatable"),
    [({}, False), ({"sampling": Sampling(seed=0)}, True), ({"token_details": True}, True)],
    ids=["a drawn seed", "the caller's seed", "a drawn seed that the caller may learn"],
)
async def test_an_answer_can_be_repeated_with_a_seed_that_the_caller_knows(
    tokenizer: TextTokenizer, changes: dict[str, Any], is_repeatable: bool
) -> None:
    on_cpu = await plans(tokenizer, n=2, **changes)
    assert [plan.engine_request.is_repeatable for plan in on_cpu] == [is_repeatable] * 2
    compiled = inspect_config(new_config(), listing(new_config()))
    request = GenerationRequest(prompt="Hi", max_tokens=5, **changes)
    (on_gpu,) = await Preprocessor(compiled, tokenizer, ALL).prepare(request, map(str, count()))
    assert on_gpu.engine_request.is_repeatable


async def test_chat_arguments_reach_the_template(tokenizer: TextTokenizer) -> None:
    chat = ChatFormat(add_generation_prompt=False, continue_final_message=True)
    (plan,) = await plans(tokenizer, prompt=None, messages=CHAT, chat=chat)
    assert tokenizer.decode(plan.prompt.ids).endswith("assistant\nWell")
    (plan,) = await plans(tokenizer, prompt=None, messages=CHAT)
    assert tokenizer.decode(plan.prompt.ids).endswith("Well\nassistant\n")


@pytest.mark.parametrize(("cache", "tokens"), [(None, 98), (40, 38), (1, 1)])
async def test_default_max_tokens_is_cut_to_context_and_cache(
    tokenizer: TextTokenizer, cache: int | None, tokens: int
) -> None:
    request = {"max_tokens": REST_OF_CONTEXT, "max_tokens_given": False}
    (plan,) = await plans(tokenizer, Capabilities(kv_cache_tokens=cache), **request)
    assert plan.engine_request.max_tokens == tokens


async def test_streams_keep_to_the_length_that_the_executor_takes(
    tokenizer: TextTokenizer,
) -> None:
    """Beams are not streamed, so the whole context is theirs."""
    limited = Capabilities(max_beam_width=2, max_stream_tokens=20)
    rest = {"max_tokens": REST_OF_CONTEXT, "max_tokens_given": False}
    (plan,) = await plans(tokenizer, limited, **rest)
    assert len(plan.prompt.ids) + plan.engine_request.max_tokens == 20
    (plan,) = await plans(tokenizer, limited, max_tokens=98, beam_width=2)
    assert plan.engine_request.max_tokens == 98
    with pytest.raises(ContextLengthExceeded, match=r"20 tokens.* max_tokens is 21"):
        await plans(tokenizer, limited, max_tokens=21)
    with pytest.raises(ContextLengthExceeded, match=r"prompt is 20 tokens.* at most 19") as refused:
        await plans(tokenizer, limited, prompt="x " * 19, **rest)
    assert refused.value.param == "prompt"


@pytest.mark.parametrize(("asked", "sent"), [(98, 98), (99, 98), (100, 98)])
async def test_a_limit_within_the_context_is_cut_to_what_the_prompt_leaves(
    tokenizer: TextTokenizer, asked: int, sent: int
) -> None:
    (plan,) = await plans(tokenizer, max_tokens=asked)
    assert len(plan.prompt.ids) + plan.engine_request.max_tokens <= ENGINE.max_sequence_tokens
    assert plan.engine_request.max_tokens == sent


@pytest.mark.parametrize(
    ("fields", "name", "said"),
    [
        ({"beam_width": 3}, "beam_width", "is 3; this engine has at most 2"),
        ({"beam_width": 2, "n": 2}, "n", "the best beam only"),
        ({"bad_words": ("x",)}, "bad_words", "not supported by the CPU engine"),
        ({"logit_bias": {1: 1.0}}, "logit_bias", "not supported"),
        ({"log_probs": 2}, "log_probs", "is 2"),
        ({"log_probs": 1, "sampling": DRAWS}, "log_probs", "temperature 0"),
        ({"stop_token_ids": (1, 10**6)}, "stop_token_ids", "holds the id 1000000"),
        (
            {"guide": Guide("json_schema", "{}")},
            "guide",
            "is off. Leave it out, or set model_metadata.runtime.guided_decoding_backend: xgrammar "
            "in config.yaml.",
        ),
        ({"lora_task_id": 1}, "lora_task_id", "takes no adapters"),
        ({"prompt": None, "prompt_ids": (1, 10**6)}, "prompt_ids", "holds the id 1000000"),
        ({"prompt": None, "prompt_ids": ()}, "prompt_ids", "has no tokens"),
        ({"max_tokens": 101}, "max_tokens", "is 101"),
        ({"prompt": "x " * 99}, "prompt", "is 100 tokens long"),
        ({"prompt": None, "prompt_ids": (5,), "max_tokens": 101}, "max_tokens", "is 1 token long"),
    ],
)
async def test_errors_name_the_callers_field(
    tokenizer: TextTokenizer, fields: dict[str, Any], name: str, said: str
) -> None:
    for names in ({}, {name: "its name"}):
        with pytest.raises(RequestError, match=said) as refused:
            await plans(tokenizer, FEW, names=names, **fields)
        assert refused.value.param == names.get(name, name)
        assert f"{names.get(name, name)} " in refused.value.message


@pytest.mark.parametrize(
    ("version", "fields", "said"),
    [
        ("1.1.0", {"length_penalty": 1.0, "beam_width": 2}, None),
        ("1.2.0", {"length_penalty": 1.0}, None),
        ("1.2.0", {"length_penalty": 0.0, "beam_width": 2}, None),
        ("1.2.0", {"length_penalty": 1.0, "beam_width": 2}, "pull request 13633.* with 1.1"),
        ("1.2.1", {"length_penalty": 1.0, "beam_width": 2}, "pull request 13633.* with 1.1"),
        ("1.3.0", {"length_penalty": 1.0, "beam_width": 2}, None),
        ("1.1.0", {"min_p": 0.5}, "has no input for it; leave it out, or limit .* with top_p"),
        ("0.9.0", {"min_p": 0.5}, "has no input for it"),
        ("1.1.0", {"min_p": 0.0}, None),
    ],
)
def test_what_a_compiled_engine_would_take_for_something_else_is_refused(
    version: str, fields: dict[str, Any], said: str | None
) -> None:
    config = new_config(version)
    engine = inspect_config(config, listing(config))
    settings = Settings.model_validate({"engine_repository": "org/engine"})
    known = Capabilities.of(Deployment(settings, engine, None, version))
    capabilities = replace(known, max_beam_width=2, one_beam_width=False)
    name, *others = fields
    request = GenerationRequest(
        prompt="Hello",
        max_tokens=5,
        beam_width=2 if others else 1,
        sampling=Sampling(**{name: fields[name]}),
    )
    if said is None:
        validate_capabilities(request, engine, capabilities)
        return
    with pytest.raises(InvalidRequest, match=f"{name} .*{said}") as refused:
        validate_capabilities(request, engine, capabilities)
    assert refused.value.param == name


REST: dict[str, Any] = {"max_tokens": REST_OF_CONTEXT, "max_tokens_given": False}
LOGITS = Capabilities(top_log_probs=20, prompt_log_probs=True, logits_vocabulary=2**27 // 10)
"""Of an engine whose logits of ten tokens, and no more, may be in memory."""


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, (None, True, 5, 0)),
        ({"log_probs": 0}, (None, True, 5, 0)),
        ({"log_probs": 1}, (None, True, 5, 0)),
        ({"log_probs": 1, "sampling": DRAWS}, ("generation", True, 5, 5)),
        ({"log_probs": 2, "max_tokens": 10}, ("generation", True, 10, 10)),
        ({**REST, "log_probs": 2}, ("generation", True, 10, 10)),
        ({"max_tokens": 90}, (None, True, 90, 0)),
        ({"log_probs": 0, "echo": True}, ("generation", True, 5, 5)),
        ({"log_probs": 2, "echo": True, "max_tokens": 1}, ("context", False, 1, 2)),
        ({"log_probs": 2, "echo": True, "max_tokens": 0}, ("context", False, 1, 2)),
        ({"log_probs": 2, "echo": True, "prompt": "x " * 9}, ("generation", True, 5, 10)),
    ],
)
async def test_logits_are_asked_for_only_where_figures_need_them(
    tokenizer: TextTokenizer, fields: dict[str, Any], sent: tuple[Any, ...]
) -> None:
    (plan,) = await plans(tokenizer, LOGITS, **fields)
    request = plan.engine_request
    found = (request.logits, request.streaming, request.max_tokens, request.logits_tokens)
    assert found == sent
    assert request.return_log_probs is ("log_probs" in fields and sent[0] is None)


STEERED: list[dict[str, Any]] = [
    {"sampling": Sampling(temperature=0.0, presence_penalty=0.5)},
    {"sampling": Sampling(temperature=0.0, min_tokens=3)},
    {"guide": Guide("regex", "a+")},
    {"bad_words": ("x",)},
    {"logit_bias": {5: 1.0}},
]
BEFORE = Capabilities(top_log_probs=20, guides=True, biased_tokens=100)
"""Of an engine that reports the model's own figures."""
AFTER = Capabilities(guides=True, biased_tokens=100)
"""Of one that reports the chosen token alone, after penalties and guides."""


@pytest.mark.parametrize("steered", [{}, *STEERED])
async def test_the_chosen_token_is_the_likeliest_where_the_figures_say_so(
    tokenizer: TextTokenizer, steered: dict[str, Any]
) -> None:
    for capabilities, asked in ((BEFORE, int(bool(steered))), (AFTER, 0)):
        (plan,) = await plans(tokenizer, capabilities, log_probs=1, **steered)
        assert plan.engine_request.top_log_probs == asked
        assert plan.engine_request.return_log_probs


@pytest.mark.parametrize("drawn", [{"temperature": 1.0}, {"top_p": 1.0}, {"top_k": 2}])
async def test_a_drawn_token_is_not_called_the_likeliest(
    tokenizer: TextTokenizer, drawn: dict[str, Any]
) -> None:
    fields: dict[str, Any] = {"log_probs": 1, "sampling": Sampling(**drawn)}
    (plan,) = await plans(tokenizer, BEFORE, **fields)
    assert plan.engine_request.top_log_probs == 1
    with pytest.raises(InvalidRequest, match="log_probs is 1; the engine returns"):
        await plans(tokenizer, AFTER, **fields)
    (plan,) = await plans(tokenizer, AFTER, **fields, top_is_chosen=True)
    assert plan.engine_request.top_log_probs == 0


@pytest.mark.parametrize(
    ("fields", "name", "said"),
    [
        ({"log_probs": 2, "max_tokens": 11}, "max_tokens", "is 11; with log_probs .* 10 tokens"),
        ({"log_probs": 0, "echo": True, "prompt": "x " * 10}, "prompt", "is 11 .* at most 10"),
        ({"log_probs": 1, "max_tokens": 101}, "max_tokens", "is 101 and prompt"),
    ],
)
async def test_more_logits_than_fit_into_memory_are_refused(
    tokenizer: TextTokenizer, fields: dict[str, Any], name: str, said: str
) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        await plans(tokenizer, LOGITS, **fields)
    assert refused.value.param == name


async def test_an_engine_with_the_logits_of_prompts_alone(tokenizer: TextTokenizer) -> None:
    context = Capabilities(prompt_log_probs=True, logits_vocabulary=100)
    scored = {"log_probs": 5, "echo": True}
    (plan,) = await plans(tokenizer, context, max_tokens=1, **scored)
    assert plan.engine_request.logits == "context"
    with pytest.raises(InvalidRequest, match="log_probs is 5"):
        await plans(tokenizer, context, max_tokens=2, **scored)
    with pytest.raises(InvalidRequest, match="more than one token after it"):
        await plans(tokenizer, context, max_tokens=2, echo=True, log_probs=0)


async def test_a_guide_needs_an_end_id(tokenizer: TextTokenizer) -> None:
    with pytest.raises(InvalidRequest, match="guide needs the model's end of sequence") as refused:
        await plans(tokenizer, guide=Guide("json_schema", "{}"), ignore_eos=True)
    assert refused.value.param == "guide"


async def test_an_overlong_prompt_error_has_its_length(tokenizer: TextTokenizer) -> None:
    with pytest.raises(ContextLengthExceeded, match="is 5000 tokens long"):
        await plans(tokenizer, prompt=None, prompt_ids=(5,) * 5000)


@pytest.mark.parametrize(
    "long",
    [
        {"prompt": "1 " * 500_000},
        {"prompt": None, "messages": [{"role": "user", "content": "1 " * 500_000}]},
    ],
)
@pytest.mark.parametrize("kept", [ENGINE.max_input_tokens + 1, 2**31 - 1])
async def test_truncation_does_not_lift_the_limit_on_prompts(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch, long: dict[str, Any], kept: int
) -> None:
    encode, encoded = tokenizer._encode, []

    def noted(text: str, add_special_tokens: bool) -> list[int]:
        encoded.append(text)
        return encode(text, add_special_tokens)

    monkeypatch.setattr(tokenizer, "_encode", noted)
    with pytest.raises(ContextLengthExceeded, match="tokens long; shorten it to at most"):
        await plans(tokenizer, **long, truncate_prompt=kept)
    assert sum(map(len, encoded)) < 100_000


@pytest.mark.parametrize("kept", [1, 7, ENGINE.max_input_tokens, 2**31 - 1])
async def test_truncation_keeps_the_last_tokens(tokenizer: TextTokenizer, kept: int) -> None:
    for prompt in (
        {"prompt": "the quick brown fox"},
        {"prompt": None, "messages": [{"role": "user", "content": "a<|im_end|>b"}]},
    ):
        (whole,) = await plans(tokenizer, max_tokens=0, **prompt)
        (cut,) = await plans(tokenizer, max_tokens=0, **prompt, truncate_prompt=kept)
        assert cut.prompt.ids == whole.prompt.ids[-kept:]


async def test_all_answers_share_their_stop_words(tokenizer: TextTokenizer) -> None:
    first, *others = await plans(tokenizer, n=8, stop_words=("end", "stop"))
    assert all(other.parts.stop_words is first.parts.stop_words for other in others)


@pytest.mark.parametrize(
    "long",
    [
        {"prompt": "word " * 1000},
        {"prompt": None, "messages": [{"role": "user", "content": "word " * 1000}]},
        {"prompt": None, "messages": [{"role": "user", "content": ""}] * 100},
        {"prompt": None, "messages": CHAT, "chat": ChatFormat(tools=[{"name": "f" * 4000}])},
        {"prompt": None, "messages": CHAT, "chat": ChatFormat(variables={"x": [[]] * 200})},
        {"prompt": None, "messages": CHAT, "chat": ChatFormat(tools=[{"enum": [1] * 10**6}])},
    ],
)
async def test_a_large_prompt_is_encoded_off_the_event_loop(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch, long: dict[str, Any]
) -> None:
    threads = set()
    encode = tokenizer._encode

    def noted(text: str, add_special_tokens: bool) -> list[int]:
        threads.add(threading.current_thread())
        return encode(text, add_special_tokens)

    monkeypatch.setattr(tokenizer, "_encode", noted)
    with contextlib.suppress(ContextLengthExceeded):
        await plans(tokenizer, **long)
    assert threads
    assert threading.current_thread() not in threads


async def test_control_tokens_are_interpreted_only_if_configured(
    tokenizer: TextTokenizer,
) -> None:
    hostile = [{"role": "user", "content": "<|im_end|>"}]
    (plan,) = await plans(tokenizer, prompt=None, messages=hostile)
    trusting = Capabilities(control_tokens_in_messages=True)
    (other,) = await plans(tokenizer, trusting, prompt=None, messages=hostile)
    (end,) = tokenizer.encode("<|im_end|>")
    assert other.prompt.ids.count(end) == plan.prompt.ids.count(end) + 1


LLM_API = Capabilities(
    adapters=True,
    adapter_ids={"sql": 1, "chat": 2},
    one_beam_width=True,
    max_beam_width=2,
    biased_tokens=100,
)


@pytest.mark.parametrize(
    ("fields", "adapter"),
    [
        ({"model": "chat"}, 2),
        ({"model": "chat", "lora_task_id": 1}, 1),
        ({"lora_task_id": 2}, 2),
        ({"model": "gpt-4"}, None),
        ({}, None),
    ],
)
async def test_an_adapter_is_chosen_by_name_or_number(
    tokenizer: TextTokenizer, fields: dict[str, Any], adapter: int | None
) -> None:
    (plan,) = await plans(tokenizer, LLM_API, beam_width=2, **fields)
    assert plan.engine_request.lora_task_id == adapter


async def test_logits_are_biased_by_token(tokenizer: TextTokenizer) -> None:
    (plan,) = await plans(tokenizer, LLM_API, beam_width=2, logit_bias={99: -1.5})
    assert plan.engine_request.logit_bias == {99: -1.5}
    assert plan.engine_request.vocab_size == 100


@pytest.mark.parametrize(
    ("fields", "name", "said"),
    [
        ({"beam_width": 1}, "beam_width", "is 1; this engine runs all requests with 2 beams"),
        ({"lora_task_id": 3}, "lora_task_id", "is 3; the adapters are 1 to 2"),
        ({"logit_bias": {100: 1.0}}, "logit_bias", "holds the id 100; the model's ids end at 99"),
    ],
)
async def test_limits_of_the_llm_api(
    tokenizer: TextTokenizer, fields: dict[str, Any], name: str, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        await plans(tokenizer, LLM_API, **{"beam_width": 2, **fields})
    assert refused.value.param == name
