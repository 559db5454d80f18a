"""Render conversations with templates, and compare with `transformers`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from jinja2 import TemplateError
from tools.template_matrix.conversations import CONVERSATIONS, Conversation

from trtllm_truss.conversation.form import Form
from trtllm_truss.conversation.templates import ModelTemplates
from trtllm_truss.conversation.writing import write, write_as_json
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.protocols.messages.body import parse_messages
from trtllm_truss.protocols.openai.body import parse_chat
from trtllm_truss.protocols.responses.body import parse_response
from trtllm_truss.requests import GenerationRequest
from trtllm_truss.text.chat_template import ChatTemplate, ControlTokens
from trtllm_truss.text.template_limits import RENDER_LIMIT_S
from trtllm_truss.text.tokenizer import RenderedConversation

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "thought", "part", "parts")

Status = Literal["whole", "lost", "refused", "failed"]


@dataclass(frozen=True)
class Cell:
    """One conversation in one template.

    Attributes:
        status: `whole`; `lost`, without an error; `refused` with 400; `failed` with 500.
        detail: the lost words, or the message.
        reference: result in the form that `transformers` documents; None if it would fail.
        equals: the prompts are the same.
    """

    status: Status
    detail: str
    reference: Status | None
    equals: bool


class Row:
    """One model's templates.

    Args:
        sources: sources by name; `default` and, for some models, `tool_use`.
    """

    def __init__(self, name: str, sources: Mapping[str, str]) -> None:
        self.name = name
        self.sources = sources

    @cached_property
    def templates(self) -> ModelTemplates:
        compiled = {name: ChatTemplate(source) for name, source in self.sources.items()}
        return ModelTemplates(compiled, TOKENS)

    @cached_property
    def _controls(self) -> Mapping[str, ControlTokens]:
        return {
            name: ControlTokens(TOKENS.values(), source) for name, source in self.sources.items()
        }

    @cached_property
    def cells(self) -> Mapping[str, Cell]:
        return {each.name: self._cell(each) for each in CONVERSATIONS}

    def prompt(self, conversation: Conversation) -> str:
        """Render a conversation as the server does.

        Raises:
            InvalidRequest: no form can render it.
        """
        request = read(conversation)
        rendered = RenderedConversation(
            self.templates,
            self._controls,
            request.messages or (),
            request.chat.tools,
            {},
            control_tokens=False,
            add_generation_prompt=True,
            continue_final_message=False,
        )
        prompt, control = rendered.render(write_as_json, lambda: None, RENDER_LIMIT_S)
        return "".join(control.split(prompt))

    def reference(self, conversation: Conversation, form: Form | None = None) -> str:
        """Render a conversation as `transformers` would render it, or in another form.

        Raises:
            InvalidRequest: the template rejects it.
        """
        request = read(conversation)
        written = write(request.messages or (), request.chat.tools, form or Form())
        if form is None and conversation.api == "chat":
            messages = [*map(_for_transformers, conversation.body["messages"])]
            written = written._replace(messages=messages)
        return self.templates.render(written)

    def _cell(self, conversation: Conversation) -> Cell:
        reference, wanted = self._try_reference(conversation)
        try:
            prompt = self.prompt(conversation)
        except InvalidRequest as error:
            return Cell("refused", error.message, reference, equals=False)
        except Exception as error:  # noqa: BLE001 - what the server answers with 500
            return Cell("failed", repr(error), reference, equals=False)
        lost = [word for word in conversation.words if word not in prompt]
        lost += [word for word in self.shown_reasoning(conversation) if word not in prompt]
        return Cell("lost" if lost else "whole", " ".join(lost), reference, equals=prompt == wanted)

    def _try_reference(self, conversation: Conversation) -> tuple[Status | None, str]:
        try:
            prompt = self.reference(conversation)
        except (InvalidRequest, TemplateError):
            return None, ""
        is_whole = all(word in prompt for word in conversation.words)
        is_whole &= not _CODE.search(prompt)
        return "whole" if is_whole else "lost", prompt

    def shown_reasoning(self, conversation: Conversation) -> list[str]:
        """Return the words of reasoning that the template renders under any name."""
        if not conversation.reasoning:
            return []
        shown: set[str] = set()
        for key in _REASONING_KEYS:
            for change in ({}, {"blank": "empty"}):
                form = Form(reasoning=key, **change)  # type: ignore[arg-type]
                try:
                    prompt = self.reference(conversation, form)
                except InvalidRequest:
                    continue
                if "'thinking'" not in prompt and '"thinking"' not in prompt:
                    shown.update(word for word in conversation.reasoning if word in prompt)
        return sorted(shown)


_CODE = re.compile(r"\bNone\b|\{'|\\\\\"city")
"""Python's own text of a value, and JSON within JSON, which no model's author intends."""


def _for_transformers(message: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the arguments of calls, as its documentation does; leave everything else as sent."""
    calls = []
    for call in message.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        with suppress(ValueError, TypeError):
            parsed = json.loads(arguments)
            arguments = parsed if isinstance(parsed, dict) else arguments
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls} if calls else dict(message)


def read(conversation: Conversation) -> GenerationRequest:
    """Read the body of a conversation by its API."""
    body: dict[str, Any] = {"model": "m", "max_tokens": 5, **conversation.body}
    if conversation.api == "messages":
        return parse_messages(body, {}).request
    if conversation.api == "responses":
        return parse_response({"model": "m", **conversation.body}, {}).request
    return parse_chat(body, {}).requests[0]


def rows_of(folder: Path) -> list[Row]:
    """Return the templates of a folder; `NAME-tool_use.jinja` belongs to `NAME.jinja`."""
    files = {file.stem: file for file in sorted(folder.rglob("*.jinja"))}
    rows = []
    for name, file in files.items():
        base = name.removesuffix("tool_use").rstrip("-._")
        if base != name and base in files:
            continue
        sources = {"default": file.read_text(encoding="utf-8")}
        for separator in "-._":
            if with_tools := files.get(f"{name}{separator}tool_use"):
                sources["tool_use"] = with_tools.read_text(encoding="utf-8")
        rows.append(Row(name, sources))
    return rows


def count(rows: Sequence[Row]) -> dict[str, int]:
    """Count the cells by status, and those that equal the reference."""
    cells = [cell for row in rows for cell in row.cells.values()]
    counted = {"templates": len(rows), "cells": len(cells)}
    for status in ("whole", "lost", "refused", "failed"):
        counted[status] = sum(cell.status == status for cell in cells)
    counted["reference whole"] = sum(cell.reference == "whole" for cell in cells)
    counted["equal to it"] = sum(cell.reference == "whole" and cell.equals for cell in cells)
    counted["refused but rendered by the reference"] = sum(
        cell.status == "refused" and cell.reference == "whole" for cell in cells
    )
    return counted
