"""What fields of a body are made of, whatever the protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.limits import MAX_WORD_CHARACTERS, MAX_WORDS
from trtllm_truss.validation import shown

INT32_MAX = 2**31 - 1
LEAST = 1e-6
"""Least value of what must be above 0: the engine computes in 32 bits, where less becomes 0."""

NonEmpty = Annotated[str, Field(min_length=1)]
Word = Annotated[str, Field(min_length=1, max_length=MAX_WORD_CHARACTERS)]
Words = Annotated[list[Word], Field(fail_fast=True, max_length=MAX_WORDS)]
"""Stop words or bad words. Without `fail_fast` pydantic collects an error for each item."""

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Unsupported(NamedTuple):
    """A field of a protocol that is not served.

    Attributes:
        reason: why, as the end of a sentence.
        neutral: values that ask for nothing, so that they may be sent.
    """

    reason: str
    neutral: tuple[Any, ...] = ()


def refuse_unsupported(
    name: str, value: Any, table: Mapping[str, Unsupported], *, within: str = ""
) -> None:
    """Lets a field of the table pass only if it asks for nothing.

    Raises:
        InvalidRequest: it asks for something.
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
    """Fields under their own names.

    Args:
        sent: by the names that the caller used.
        aliases: other names, and the field that each of them means.
        texts: fields that hold a list of texts, for which one text alone may stand.
        within: what is put before a name in messages.

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
        fields[field] = [value] if field in texts and isinstance(value, str) else value
    return fields
