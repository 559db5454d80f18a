"""Field types, field errors and guides shared by all protocols."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sized
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, create_model
from pydantic_core import PydanticCustomError

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.base import (
    MAX_GUIDE_CHARACTERS,
    MAX_WORD_CHARACTERS,
    MAX_WORDS,
    MAX_WORDS_CHARACTERS,
    Budget,
    parse_json_text,
)
from trtllm_truss.request_fields import (
    INT32_MAX,
    OPTIONS,
    SAMPLING,
    Ids,
    ProtocolName,
    RequestField,
    Sampling,
    Texts,
    rows_of,
)
from trtllm_truss.requests import Guide, Language
from trtllm_truss.validation import (
    SHOWN_CHARACTERS,
    WORDS_TOO_LONG,
    Strict,
    broken_rule,
    did_you_mean,
    dotted_path,
    shown,
    shown_name,
)

NonEmpty = Annotated[str, Field(min_length=1)]
Word = Annotated[str, Field(min_length=1, max_length=MAX_WORD_CHARACTERS)]


def _bounded_words(words: list[str]) -> list[str]:
    if sum(map(len, words)) > MAX_WORDS_CHARACTERS:
        raise PydanticCustomError(WORDS_TOO_LONG, "too long", {"most": MAX_WORDS_CHARACTERS})
    return words


Words = Annotated[
    list[Word], Field(fail_fast=True, max_length=MAX_WORDS), AfterValidator(_bounded_words)
]
"""Stop words or bad words. `fail_fast` keeps pydantic from collecting an error per item."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, le=INT32_MAX)]], Field(fail_fast=True, max_length=MAX_WORDS)
]


_ROWS = {row.name: row for row in (*SAMPLING, *OPTIONS)}
_TYPES: dict[Any, Any] = {float: Finite, int: int, bool: bool, Texts: Words, Ids: TokenIds}
"""Types of body fields by types of the table."""

Body = TypeVar("Body", bound=Strict)


def with_request_fields(
    protocol: ProtocolName, *, without: Collection[str] = ()
) -> Callable[[type[Body]], type[Body]]:
    """Add the table's fields to a body that declares its protocol's own fields.

    Args:
        without: fields that another class of the protocol declares.
    """

    def add(body: type[Body]) -> type[Body]:
        taken = {*body.model_fields, *without}
        fields = {name: row for name, row in rows_of(protocol).items() if name not in taken}
        made: dict[str, Any] = {
            name: (_type(row), body_field(row.name)) for name, row in fields.items()
        }
        return create_model(body.__name__, __base__=body, __module__=body.__module__, **made)

    return add


ROW = "row"
"""Key of a field's extra that contains the name of its row.

Pages use it to list the engines that refuse the field.
"""


def body_field(name: str, **own: Any) -> Any:
    """Return pydantic's field of a row.

    Args:
        own: arguments of `Field` that differ in the protocol, such as another default.
    """
    row = _ROWS[name]
    if isinstance(row.default, tuple):
        arguments: dict[str, Any] = {"default_factory": list}
    else:
        arguments = {"default": row.default}
    if row.zero is None:  # otherwise the type has the limits
        arguments |= _limits(row)
    extra = {ROW: row.name}
    return Field(**{**arguments, "description": row.meaning, "json_schema_extra": extra, **own})


def _type(row: RequestField) -> Any:
    kind = _TYPES[row.kind]
    if row.zero is not None:
        kind = Annotated[
            kind,
            Field(**_limits(row)),
            BeforeValidator(lambda value: 0 if value == row.zero else value),
        ]
    return kind | None if row.default is None else kind


def _limits(row: RequestField) -> dict[str, Any]:
    limits = {"ge": row.range.low, "le": row.range.high}
    return {name: limit for name, limit in limits.items() if limit is not None}


_PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)
_LISTS = tuple(row.attribute for row in OPTIONS if isinstance(row.default, tuple))


def _getters(
    rows: Iterable[RequestField],
) -> dict[ProtocolName, Callable[[Strict], tuple[Any, ...]]]:
    return {
        protocol: attrgetter(*(name for row in rows if (name := row.name_in(protocol))))
        for protocol in _PROTOCOLS
    }


_sampling_values = _getters(SAMPLING)
_option_values = _getters(OPTIONS)
_OPTIONS = {
    protocol: [row.attribute for row in OPTIONS if row.name_in(protocol)] for protocol in _PROTOCOLS
}


def request_arguments(fields: Strict, protocol: ProtocolName) -> dict[str, Any]:
    """Return the arguments of a `GenerationRequest` that the table lists, from a valid body."""
    values = _option_values[protocol](fields)
    arguments = dict(zip(_OPTIONS[protocol], values, strict=True))
    for attribute in _LISTS:
        arguments[attribute] = tuple(arguments[attribute])
    arguments["sampling"] = read_sampling(fields, protocol)
    return arguments


def read_sampling(fields: Strict, protocol: ProtocolName) -> Sampling:
    """Return the sampling of a valid body."""
    sampling = Sampling(*_sampling_values[protocol](fields))
    if sampling.seed is not None:
        sampling.seed %= 2**64
    return sampling


def attribute_names(protocol: ProtocolName) -> dict[str, str]:
    """Return a protocol's field names by request attribute, where they differ."""
    rows = rows_of(protocol).items()
    return {row.attribute: name for name, row in rows if name != row.attribute}


def with_defaults(
    sent: Mapping[str, Any],
    defaults: Mapping[str, Any],
    body: type[Strict],
    protocol: ProtocolName,
    *,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """Return the fields sent in a body and the defaults of omitted ones, by the body's names.

    The default `end_id` is added to `stop_token_ids`, even if the caller sends that field.

    Args:
        defaults: values of omitted fields, by the predict body's field names.
        body: the protocol's body class.
        protocol: names the fields of the table.
        without: predict fields whose defaults do not apply.
    """
    names = _default_names(body, protocol)
    applied = names.keys() - without
    values = {names[name]: value for name, value in defaults.items() if name in applied}
    end_id, ids = defaults.get("end_id"), names["stop_token_ids"]
    if end_id == -1:
        values[names["ignore_eos"]] = True
    values.update(sent)
    if end_id not in (None, -1) and isinstance(given := values.get(ids, []), list):
        values[ids] = [*given, end_id]
    return values


@cache
def _default_names(body: type[Strict], protocol: ProtocolName) -> dict[str, str]:
    """Return a body's field names by the predict body's names."""
    renamed = {row.name: name for name, row in rows_of(protocol).items()}
    return {**{name: name for name in body.model_fields}, **renamed}


def check_min_tokens(min_tokens: int | None, max_tokens: int, limit: str = "max_tokens") -> None:
    """Refuse a minimum of tokens above the maximum.

    Raises:
        InvalidRequest: `min_tokens` exceeds `max_tokens`, which the message calls `limit`.
    """
    if (min_tokens or 0) > max_tokens:
        raise InvalidRequest(
            f"min_tokens is {min_tokens}; it must be at most {limit}, {max_tokens}.",
            param="min_tokens",
        )


class Unsupported(NamedTuple):
    """An unsupported field of a protocol.

    Attributes:
        reason: end of the error message.
        neutral: accepted values without effect.
    """

    reason: str
    neutral: tuple[Any, ...] = ()


UNSERVED = {
    "allowed_token_ids": Unsupported("the engine has no such limit", ([],)),
    "spaces_between_special_tokens": Unsupported("the tokenizer decides", (True,)),
    "typical_p": Unsupported("the engine has no typical sampling", (1,)),
}
"""Fields of vLLM and TGI that no engine supports."""


def refuse_unsupported(
    name: str, value: Any, table: Mapping[str, Unsupported], *, within: str = ""
) -> None:
    """Accept only neutral values of an unsupported field.

    Raises:
        InvalidRequest: the value would have an effect.
    """
    if value in table[name].neutral:
        return
    raise InvalidRequest(
        f"{within}{name} is {shown(value)}; it is not supported: {table[name].reason}. "
        "Leave it out.",
        param=name,
    )


def named_once(
    sent: Mapping[str, Any], aliases: Mapping[str, str], texts: Collection[str], *, within: str = ""
) -> dict[str, Any]:
    """Resolve aliases of fields.

    Args:
        sent: values by the caller's names.
        aliases: field by alias.
        texts: fields with a list of strings, which also accept a single string; an empty one counts
            as none.
        within: prefix of names in messages.

    Raises:
        InvalidRequest: a field is given under two names.
    """
    fields: dict[str, Any] = {}
    for name, value in sent.items():
        field = aliases.get(name, name)
        if field in fields:
            raise InvalidRequest(
                f"{within}{name} and another name of {field} are both given; send one of them.",
                param=name,
            )
        fields[field] = listed(value) if field in texts else value
    return fields


def listed(value: Any) -> Any:
    """Wrap a string in a list (an empty one in an empty list); return other values unchanged."""
    return [value] * bool(value) if isinstance(value, str) else value


_UNION_TAGS = (("str",), ("dict[str,any]",))
"""pydantic's names of the members of `str | dict[str, Any]`, which appear in its findings."""


def invalid_request(
    error: ValidationError, known: Iterable[str], refused: Iterable[str] = ()
) -> InvalidRequest:
    """Build the error of a failed validation from its first finding.

    Args:
        known: names of fields, for suggestions.
        refused: names of refused fields.
    """
    finding: dict[str, Any] = dict(error.errors(include_url=False)[0])
    if finding["type"] in ("string_type", "dict_type") and finding["loc"][-1:] in _UNION_TAGS:
        finding |= {"loc": finding["loc"][:-1], "type": "text_or_object"}
    location = [p if isinstance(p, int) else p[:SHOWN_CHARACTERS] for p in finding["loc"]]
    path = dotted_path(location)
    if finding["type"] == "extra_forbidden":
        return unknown_field(path, known, refused)
    if finding["type"] == "missing":
        return InvalidRequest(f"{path} is missing.", param=path)
    param = str(location[0]) if location else None
    return InvalidRequest(f"{broken_rule(finding, path)}.", param=param)


def check_length(name: str, items: Sized, maximum: int, *, param: str, unit: str = "items") -> None:
    """Refuse a list or text that is too long.

    Raises:
        InvalidRequest: it has more than `maximum` of `unit`.
    """
    if len(items) > maximum:
        raise InvalidRequest(
            f"{name} has {len(items)} {unit}; it must have at most {maximum} {unit}.",
            param=param,
        )


def unknown_field(name: str, known: Iterable[str], refused: Iterable[str] = ()) -> InvalidRequest:
    """Build the error that refuses a field by name; see `invalid_request`."""
    names = sorted({*known} - {*refused})
    close = did_you_mean(name, names, refused)
    hint = f"did you mean {close}?" if close else f"the fields are {', '.join(names)}."
    return InvalidRequest(
        f"{shown_name(name)} is not a field of this request; {hint}", param=name[:SHOWN_CHARACTERS]
    )


ANY_OBJECT = json.dumps({"type": "object", "additionalProperties": True})
"""For `json`, the backend also accepts arrays."""

_SEPARATOR, _KEY = len(", "), len('"": ')
"""JSON characters around each value and each key.

A container's brackets replace its last separator.
"""


def schema_guide(value: Any, name: str, param: str, *, as_text: bool = False) -> Guide:
    """Return the guide for a JSON schema.

    Args:
        name: its path, for messages.
        as_text: the schema may be given as text.

    Raises:
        InvalidRequest: it is not a schema, or is too long.
    """
    try:
        if as_text and isinstance(value, str):
            value = parse_json_text(bounded(value, name, param), Budget(f" in {name}", param))
    except ValueError:
        pass
    if not isinstance(value, dict):
        raise wrong(name, value, "a JSON schema", param)
    return Guide("json_schema", schema_text(value, name, param))


def text_guide(language: Language, value: Any, name: str, param: str) -> Guide:
    """Return the guide for a regular expression or a grammar.

    Raises:
        InvalidRequest: it is not a string, is empty or is too long.
    """
    if not isinstance(value, str) or not value:
        raise wrong(name, value, "a non-empty string", param)
    return Guide(language, bounded(value, name, param))


def wrong(name: str, value: Any, wanted: str, param: str | None = None) -> InvalidRequest:
    """Build the error for a wrong value.

    Args:
        name: its path in the body.
        param: the field at fault; by default the one that contains it.
    """
    message = f"{name} is {shown(value)}; it must be {wanted}."
    return InvalidRequest(message, param=field_of(name) if param is None else param)


def field_of(path: str) -> str:
    """Return the field that contains a path such as ``messages[0].content``."""
    return path.partition("[")[0].partition(".")[0]


def is_private(key: str) -> bool:
    """Return True for a key that a client keeps for its own use.

    GitHub Copilot CLI 1.0.102 leaves `__copilotMessageSource` in the messages of resumed sessions.
    """
    return key.startswith("__")


def check_keys(
    value: Mapping[str, Any], known: Collection[str], path: str, ignored: Collection[str] = ()
) -> None:
    """Refuse an unknown key of an object, with its path.

    Raises:
        InvalidRequest: a key is neither known nor ignored, nor private where private keys are
            allowed.
    """
    for name in value:
        if name not in known and name not in ignored and not (ignored and is_private(name)):
            raise InvalidRequest(
                f"{path}.{shown_name(name)} is not a field; the fields of {path} are "
                f"{', '.join(known)}.",
                param=field_of(path),
            )


def bounded(text: str, name: str, param: str) -> str:
    """Return the text of a guide.

    Raises:
        InvalidRequest: the text is too long.
    """
    check_length(name, text, MAX_GUIDE_CHARACTERS, param=param, unit="characters")
    return text


def schema_text(schema: Mapping[str, Any], name: str, param: str) -> str:
    """Write a JSON schema.

    Raises:
        InvalidRequest: its text is too long.
    """
    check_size(schema, name, param)
    return bounded(json.dumps(schema, ensure_ascii=False), name, param)


def check_size(value: Any, name: str, param: str) -> None:
    """Refuse a value whose JSON is certainly too long, before copying anything.

    Raises:
        InvalidRequest: the value is too long.
    """
    left = MAX_GUIDE_CHARACTERS + _SEPARATOR
    stack = [value]
    while stack:
        value = stack.pop()
        left -= _SEPARATOR
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, Mapping):
            left -= sum(map(len, value)) + _KEY * len(value)
            stack += value.values()
        elif isinstance(value, list):
            stack += value
        if _SEPARATOR * len(stack) > left:
            raise InvalidRequest(
                f"{name} is too long; it must have at most {MAX_GUIDE_CHARACTERS} characters.",
                param=param,
            )
