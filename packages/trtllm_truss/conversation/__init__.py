"""Conversations: their common form, and how they are written for a model's chat template.

A conversation is a list of turns, each a dictionary with these keys, the ones of `transformers`
(https://huggingface.co/docs/transformers/chat_extras):

- `role`: `system`, `user`, `assistant`, `tool`, or another name that the caller chose;
- `content`: its text; missing if the turn has none;
- `reasoning_content`: the reasoning before it;
- `tool_calls`: calls, each `{"id", "type", "function": {"name", "arguments"}}`; arguments are an
  object, or text if they are not a JSON object;
- `tool_call_id`, `name`: of the call that a `tool` turn responds to.

The readers of `protocols.conversation` convert each API's bodies to this form. `writing` converts
it to the messages that one model's template renders, as a `Form` specifies. `probing` finds that
form by rendering marked conversations, never by reading the template's source; `templates` keeps
the result and chooses the form for each request.
"""

from __future__ import annotations

from typing import Any

Turn = dict[str, Any]
Tool = dict[str, Any]
