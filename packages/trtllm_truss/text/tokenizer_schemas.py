"""The schemas of a tokenizer's JSON files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from trtllm_truss.json_files import INT32_MAX, JsonObject
from trtllm_truss.text.tokenizer_parts import MAX_ADDED_TOKENS, MAX_END_IDS, MAX_TOKEN_CHARACTERS


def as_list(value: Any) -> list[Any]:
    """Return a value as a list; a single value becomes a list of one, None an empty list."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _text_of(token: Any) -> Any:
    """Return the text of a token, stored as a string or as the fields of an `AddedToken`."""
    return token.get("content") if isinstance(token, Mapping) else token


def named_templates(value: Any) -> list[Any]:
    """Return `chat_template`, a text or a list of named ones, as a list."""
    return as_list({"name": "default", "template": value} if isinstance(value, str) else value)


_Text = Annotated[str, Field(max_length=MAX_TOKEN_CHARACTERS)]


_Token = Annotated[_Text | None, BeforeValidator(_text_of)]


_Id = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]


_Number = Annotated[float, Field(allow_inf_nan=False)]


class _AddedToken(JsonObject):
    content: _Text
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class _Template(JsonObject):
    name: str
    template: str


class TemplateFile(JsonObject):
    """`chat_template.json`."""

    chat_template: Annotated[list[_Template], BeforeValidator(named_templates)] = Field(
        default_factory=list
    )


class TokenizerConfig(TemplateFile):
    """`tokenizer_config.json` and `special_tokens_map.json`."""

    tokenizer_class: str = ""
    add_bos_token: bool | None = None

    bos_token: _Token = None
    eos_token: _Token = None
    unk_token: _Token = None
    sep_token: _Token = None
    pad_token: _Token = None
    cls_token: _Token = None
    mask_token: _Token = None
    additional_special_tokens: Annotated[
        list[_Token], Field(max_length=MAX_ADDED_TOKENS), BeforeValidator(as_list)
    ] = Field(default_factory=list)
    added_tokens_decoder: Annotated[dict[_Id, _AddedToken], Field(max_length=MAX_ADDED_TOKENS)] = (
        Field(default_factory=dict)
    )


class EndIds(JsonObject):
    """EOS ids of a model."""

    eos_token_id: Annotated[
        list[Annotated[int, Field(ge=0, le=INT32_MAX)]],
        Field(max_length=MAX_END_IDS),
        BeforeValidator(as_list),
    ] = Field(default_factory=list)


class ModelConfig(EndIds):
    """A model's `config.json`; one with several parts has a `text_config`."""

    text_config: EndIds = Field(default_factory=EndIds)


class GenerationConfig(EndIds):
    """`generation_config.json`; the ranges are those of `transformers`."""

    temperature: Annotated[_Number, Field(ge=0)] = 1.0
    top_p: Annotated[_Number, Field(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] = 0
    min_p: Annotated[_Number, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[_Number, Field(gt=0)] = 1.0
