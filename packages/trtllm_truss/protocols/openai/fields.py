"""Convert fields of OpenAI's APIs and extensions to arguments of a `GenerationRequest`.

The guide of a body is OpenAI's `response_format`, or vLLM's fields
(https://docs.vllm.ai/en/latest/features/structured_outputs.html). In `response_format`, `text`,
`json_object` and `json_schema` are OpenAI's types
(https://platform.openai.com/docs/guides/structured-outputs), as is `grammar`, which its client
defines; `regex` is a type of TensorRT-LLM's own server. TGI's form has `value`
(https://huggingface.co/docs/text-generation-inference/conceptual/guidance): huggingface_hub turns a
`json_schema` into a `json_object` with a `value`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import MAX_BIASED_TOKENS, MAX_MODEL_CHARACTERS
from trtllm_truss.protocols.fields import (
    ANY_OBJECT,
    UNSERVED,
    Finite,
    NonEmpty,
    Unsupported,
    Words,
    attribute_names,
    body_field,
    bounded,
    check_min_tokens,
    check_size,
    invalid_request,
    listed,
    refuse_unsupported,
    request_arguments,
    schema_guide,
    text_guide,
    with_defaults,
    with_request_fields,
    wrong,
)
from trtllm_truss.request_fields import INT32_MAX
from trtllm_truss.requests import REST_OF_CONTEXT, Guide, Language
from trtllm_truss.validation import Strict, shown, shown_name

_OPENAIS = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop")
"""Fields of the table that OpenAI defines."""

REFUSED_EXTENSIONS = {
    **UNSERVED,
    "baseten": Unsupported("send its values as fields of their own"),
    "cache_salt": Unsupported("all callers share the cache of prefixes"),
    "detokenize": Unsupported("answers are text", (True,)),
    "extra_body": Unsupported("send its values as fields of their own", ({},)),
    "early_stopping": Unsupported("the engine decides when beams end", (False,)),
    "guided_whitespace_pattern": Unsupported("write it in a grammar"),
    "logits_processors": Unsupported("the engine runs no code of callers", ([],)),
    "lora_request": Unsupported("lora_task_id chooses the adapter"),
    "mm_processor_kwargs": Unsupported("prompts are text", ({},)),
    "no_stop_trim": Unsupported("include_stop_str_in_output keeps stop words", (False,)),
    "priority": Unsupported("requests have no priorities", (0,)),
    "prompt_logprobs": Unsupported("echo with logprobs returns those of the prompt"),
    "request_id": Unsupported("X-Request-Id of the response is the id"),
    "return_context_logits": Unsupported("answers have no logits", (False,)),
    "return_generation_logits": Unsupported("answers have no logits", (False,)),
    "return_hidden_states": Unsupported("answers have no hidden states", (False,)),
    "return_token_ids": Unsupported("answers are text", (False,)),
    "return_tokens_as_token_ids": Unsupported("tokens are returned as text", (False,)),
    "separate_reasoning": Unsupported("serving.reasoning_parser decides", (True,)),
    "stream_reasoning": Unsupported("a stream has the reasoning as it comes", (True,)),
    "top_p_min": Unsupported("the engine's decay of top_p is not available", (0,)),
    "use_beam_search": Unsupported("beam_width chooses it", (False,)),
}
"""Unsupported fields of vLLM, SGLang (whose routers add them to every body) and trtllm-serve."""

UNUSED_EXTENSIONS = {
    "client_metadata": "it describes the client, such as Codex, to its own server",
    "guided_decoding_backend": "the engine has one",
}
"""Fields of clients and of vLLM without effect, with the reasons."""


class StreamOptions(Strict):
    """`stream_options`."""

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False


@with_request_fields("openai", without=_OPENAIS)
class OpenAIExtensions(Strict):
    """Fields beyond OpenAI's; the names are vLLM's."""

    structured_outputs: dict[str, Any] | None = Field(
        None,
        description="The format of the output: one of `json` (a schema), `json_object` (true), "
        "`regex`, `choice` (a list of texts) and `grammar` (EBNF); "
        "`disable_any_whitespace` is also accepted here.",
    )
    guided_json: dict[str, Any] | str | None = Field(
        None, description="The older form of `structured_outputs.json`."
    )
    guided_regex: NonEmpty | None = Field(
        None, description="The older form of `structured_outputs.regex`."
    )
    guided_choice: list[str] | None = Field(
        None, fail_fast=True, description="The older form of `structured_outputs.choice`."
    )
    guided_grammar: NonEmpty | None = Field(
        None, description="The older form of `structured_outputs.grammar`."
    )


class SharedFields(OpenAIExtensions):
    """Fields of both APIs."""

    model: Annotated[str, Field(max_length=MAX_MODEL_CHARACTERS)] = Field(
        "model",
        description="Echoed; default: `model_name` in config.yaml. One model is served under any "
        "name. An adapter's name selects the adapter.",
    )
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=INT32_MAX,
        description="Maximum number of generated tokens; at most, and by default, the rest of "
        "the context.",
    )
    n: int = Field(1, ge=1, le=128, description="Number of choices per prompt.")
    stop: Words = body_field(
        "stop_words", description='A text or a list of texts that finish a choice; `""` means none.'
    )
    stream: bool = Field(False, description="Server-sent events; the last one is `[DONE]`.")
    stream_options: StreamOptions | None = Field(
        None,
        description="`include_usage`; with it, `continuous_usage_stats` adds the usage so far to "
        "every event; `include_obfuscation` may only be false.",
    )
    temperature: Finite = body_field("temperature", default=1.0, le=2)
    top_p: Finite = body_field("top_p", default=1.0)
    presence_penalty: Finite | None = body_field("presence_penalty", description="As OpenAI's.")
    frequency_penalty: Finite | None = body_field("frequency_penalty", description="As OpenAI's.")
    seed: int | None = body_field("seed", ge=-(2**63))
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict,
        max_length=MAX_BIASED_TOKENS,
        description="Offsets added to logits, by token id; requires a checkpoint.",
    )
    response_format: dict[str, Any] | None = Field(
        None,
        description="`text`, `json_object`, `json_schema`; beyond OpenAI's, `regex` and "
        "`grammar` (EBNF), each with its text under the same name; TGI's form uses `value` "
        "instead. A `json_object` may contain a schema as `schema`.",
    )


Body = TypeVar("Body", bound=SharedFields)


def read_body(
    model: type[Body],
    body: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    refused: Mapping[str, Unsupported],
    unused: Mapping[str, str],
) -> Body:
    """Validate the fields of a body. A field that is null counts as omitted.

    Args:
        defaults: values for omitted fields, by the predict body's field names.
        unused: fields without effect, with the reasons.

    Raises:
        InvalidRequest: a field is unknown, unsupported, of the wrong type or out of range.
    """
    sent = {}
    for name, value in body.items():
        if name in unused or (value is None and (name in refused or name in model.model_fields)):
            continue
        if name in refused:
            refuse_unsupported(name, value, refused)
        else:
            sent[name] = listed(value) if name in ("stop", "bad_words") else value
    replaced = ("stream", "max_tokens") if "max_completion_tokens" in sent else ("stream",)
    try:
        return model.model_validate(
            with_defaults(sent, defaults, model, "openai", without=replaced)
        )
    except ValidationError as error:
        raise invalid_request(error, {*model.model_fields, *unused}, refused) from None


FLAT_PATH = "text.format"
_PATH = "response_format"
_TEXTS: dict[str, Language] = {"regex": "regex", "grammar": "ebnf_grammar"}
_OBJECT_SCHEMAS = ("value", "schema")
_OBJECT_TYPES = ("json_object", "json")
_TYPES = ("text", *_OBJECT_TYPES, "json_schema", *_TEXTS)
_KINDS = ("json", "json_object", "regex", "choice", "grammar")
_OLDER = ("json", "regex", "choice", "grammar")
_BLANKS = "disable_any_whitespace"


def read_guide(fields: SharedFields, text_format: Guide | None) -> tuple[str, Guide | None]:
    """Return the guide and the name of its field, which is meaningless without a guide.

    Raises:
        InvalidRequest: a field is malformed, or several constrain the output.
    """
    guides = {
        FLAT_PATH: text_format,
        "response_format": read_response_format(fields.response_format),
        "structured_outputs": _structured(fields.structured_outputs or {}),
    }
    for kind in _OLDER:
        name = f"guided_{kind}"
        if (value := getattr(fields, name)) is not None:
            guides[name] = _guide(kind, value, name, name)
    given = [name for name, guide in guides.items() if guide is not None]
    if len(given) > 1:
        raise InvalidRequest(
            f"{' and '.join(given)} both constrain the output; send one of them.", param=given[1]
        )
    name = given[0] if given else "response_format"
    return name, guides[name]


def _structured(options: Mapping[str, Any]) -> Guide | None:
    field = "structured_outputs"
    chosen = {name: value for name, value in options.items() if name != _BLANKS}
    given = [name for name, value in chosen.items() if value is not None and value is not False]
    for name in given:
        if name not in _KINDS:
            raise InvalidRequest(
                f"{field}.{shown_name(name)} is not supported; send one of {', '.join(_KINDS)}.",
                param=field,
            )
    if not given:
        return None
    if len(given) > 1:
        raise InvalidRequest(
            f"{field} contains {' and '.join(given)}; send one of them.", param=field
        )
    return _guide(given[0], options[given[0]], f"{field}.{given[0]}", field)


def _fixes_blanks(fields: SharedFields) -> bool:
    """Return `disable_any_whitespace`, which vLLM's clients send in `structured_outputs`."""
    value = (fields.structured_outputs or {}).get(_BLANKS)
    if value is None:
        return bool(getattr(fields, _BLANKS))
    if not isinstance(value, bool):
        raise wrong(f"structured_outputs.{_BLANKS}", value, "true or false", "structured_outputs")
    return value


def _guide(kind: str, value: Any, name: str, param: str) -> Guide:
    if kind == "json":
        return schema_guide(value, name, param, as_text=True)
    if kind == "json_object":
        return Guide("json_schema", ANY_OBJECT)
    if kind == "choice":
        return Guide("ebnf_grammar", _alternatives(value, name, param))
    return text_guide(_TEXTS[kind], value, name, param)


def _alternatives(value: Any, name: str, param: str) -> str:
    """Write a grammar of alternative texts; JSON's escapes are valid in EBNF."""
    if not isinstance(value, list) or not value or not all(isinstance(v, str) and v for v in value):
        raise wrong(name, value, "a list of non-empty strings", param)
    check_size(value, name, param)
    texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in value)
    return bounded(f"root ::= {texts}", name, param)


def read_response_format(
    response_format: Mapping[str, Any] | None, *, flat: bool = False
) -> Guide | None:
    """Return the guide of a `response_format`; None for unrestricted text.

    Args:
        flat: it is the `text.format` of Responses, which contains the schema itself.

    Raises:
        InvalidRequest: its type is unknown, or the key that its type requires is missing.
    """
    if response_format is None:
        return None
    path, kind = FLAT_PATH if flat else _PATH, response_format.get("type")
    if kind == "text":
        return None
    if kind in _OBJECT_TYPES:
        for key in _OBJECT_SCHEMAS:
            if (schema := response_format.get(key)) is not None:
                return schema_guide(schema, f"{path}.{key}", path)
        return Guide("json_schema", ANY_OBJECT)
    if kind == "json_schema":
        holder = path if flat else f"{path}.json_schema"
        description = response_format if flat else _value(response_format, "json_schema")
        if not isinstance(description, Mapping):
            raise wrong(holder, description, "an object that contains the schema", path)
        strict = description.get("strict")
        if strict is not None and not isinstance(strict, bool):
            raise wrong(f"{holder}.strict", strict, "true or false", path)
        guide = schema_guide(description.get("schema"), f"{holder}.schema", path)
        return guide._replace(is_strict=bool(strict))
    if isinstance(kind, str) and kind in _TEXTS:
        return text_guide(_TEXTS[kind], _value(response_format, kind), f"{path}.{kind}", path)
    raise wrong(f"{path}.type", kind, f"one of {', '.join(_TYPES)}", path)


def _value(response_format: Mapping[str, Any], kind: str) -> Any:
    """Return the value of a type, which TGI clients send as `value`."""
    value = response_format.get(kind)
    return response_format.get("value") if value is None else value


_NAMES = {**attribute_names("openai"), "prompt_ids": "prompt", "guide": "response_format"}
"""Names of request attributes in both APIs, where they differ."""


def generation_arguments(
    fields: SharedFields,
    *,
    max_tokens: int | None,
    max_tokens_given: bool,
    names: Mapping[str, str],
    text_format: Guide | None = None,
) -> dict[str, Any]:
    """Return the arguments of a `GenerationRequest` that do not depend on the API.

    Args:
        max_tokens: the limit; None for the rest of the context.
        names: this API's own names of request attributes.
        text_format: the guide of `text.format`, which replaces `response_format` in Responses.

    Raises:
        InvalidRequest: fields contradict each other.
    """
    arguments = request_arguments(fields, "openai")
    _check_agreement(fields.n, arguments, max_tokens)
    guide_field, guide = read_guide(fields, text_format)
    options = stream_options(fields)
    return {
        **arguments,
        "max_tokens": REST_OF_CONTEXT if max_tokens is None else max_tokens,
        "max_tokens_given": max_tokens_given,
        "n": fields.n,
        "logit_bias": _by_token_id(fields.logit_bias),
        "guide": guide,
        "fixes_blanks": _fixes_blanks(fields),
        "model": fields.model,
        "running_usage": options.include_usage and options.continuous_usage_stats,
        "names": {**_NAMES, **names, **({} if guide is None else {"guide": guide_field})},
    }


def stream_options(fields: SharedFields) -> StreamOptions:
    """Return the stream options.

    Raises:
        InvalidRequest: `stream_options` without a stream, or with an unsupported option.
    """
    options = fields.stream_options
    if options is None:
        return StreamOptions()
    if not fields.stream:
        raise InvalidRequest(
            "stream_options are given, but stream is false; leave them out, or stream.",
            param="stream_options",
        )
    if options.include_obfuscation:
        raise InvalidRequest(
            "stream_options.include_obfuscation is true; events are not padded. Leave it out.",
            param="stream_options",
        )
    return options


def _check_agreement(n: int, arguments: Mapping[str, Any], max_tokens: int | None) -> None:
    if 1 < arguments["beam_width"] < n:
        raise InvalidRequest(
            f"n is {n}; it must be at most beam_width, {arguments['beam_width']}.", param="n"
        )
    if max_tokens is not None:
        check_min_tokens(arguments["sampling"].min_tokens, max_tokens, "the tokens to generate")


def _by_token_id(logit_bias: dict[str, float]) -> dict[int, float]:
    for name in logit_bias:
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise InvalidRequest(
                f"logit_bias has the key {shown(name)}; keys must be token ids.",
                param="logit_bias",
            )
    return {int(name): bias for name, bias in logit_bias.items()}
