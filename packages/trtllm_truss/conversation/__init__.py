"""Conversations: one form of them, and their way into a model's chat template.

A conversation is a list of turns, each a dictionary with these keys, the ones of `transformers`
(https://huggingface.co/docs/transformers/chat_extras):

- `role`: `system`, `user`, `assistant`, `tool`, or another name that the caller chose;
- `content`: its text; missing where the turn has none;
- `reasoning_content`: the reasoning before it;
- `tool_calls`: calls, each `{"id", "type", "function": {"name", "arguments"}}`; arguments are an
  object, or text that does not hold one;
- `tool_call_id`, `name`: of the call that a `tool` turn answers.

The readers of `protocols.conversation` translate each API's bodies into it. `writing` turns it into
the messages that one model's template shows, as a `Form` says. `probing` finds that form by
rendering marked conversations, never by reading the template's source; `templates` holds the result
and chooses the form of one request.
"""

from __future__ import annotations

from typing import Any

Turn = dict[str, Any]
Tool = dict[str, Any]
