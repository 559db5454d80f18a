"""The field `chat_template_kwargs`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.limits import MAX_TEMPLATE_VARIABLES_CHARACTERS
from trtllm_truss.text.tokenizer_files import ROLES

_FIELD = "chat_template_kwargs"
_REFUSED = {
    **dict.fromkeys(
        ("messages", "tools", "add_generation_prompt", "continue_final_message"),
        "send it as a field of its own",
    ),
    **dict.fromkeys(ROLES, "the tokenizer sets it"),
    **dict.fromkeys(("raise_exception", "strftime_now"), "it is a function of chat templates"),
}
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False)


def template_variables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a chat template.

    Raises:
        InvalidRequest: a name has another meaning in templates, or the values are too long.
    """
    if not values:
        return {}  # the encoder below leaves itself to the garbage collector
    for name, remedy in _REFUSED.items():
        if name in values:
            raise InvalidRequest(f"{_FIELD} holds {name}; {remedy}.", param=_FIELD)
    characters = 0
    for part in _ENCODER.iterencode(values):  # lazily: they can be megabytes
        characters += len(part)
        if characters > MAX_TEMPLATE_VARIABLES_CHARACTERS:
            raise InvalidRequest(
                f"{_FIELD} has more than {MAX_TEMPLATE_VARIABLES_CHARACTERS} characters as JSON; "
                "shorten it.",
                param=_FIELD,
            )
    return dict(values)
