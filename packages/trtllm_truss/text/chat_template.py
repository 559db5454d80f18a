"""Chat templates: the Jinja program, shipped with a model, that turns messages into its prompt.

The `transformers` library defines what a template may use
(https://huggingface.co/docs/transformers/chat_templating_writing): the names given to `render`, the
functions `raise_exception` and `strftime_now`, a `tojson` that leaves non-ASCII text alone, loop
controls, and `{% generation %}` blocks, which mark the assistant's words for training and render
their content here. Templates are downloaded, so they run in Jinja's sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trtllm_truss.errors import InvalidRequest

_END_MARK = "\ue000end of the last message\ue000 "
"""Private characters, which no message holds; a template that trims removes the last space."""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the template's text.

    Raises:
        jinja2.TemplateSyntaxError: the source is invalid.
    """

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except (RecursionError, SyntaxError, ValueError, OverflowError) as error:
            # Of Python's compiler, which gets the template as a program: too deep, or too long.
            raise TemplateSyntaxError(str(error), 1) from error

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Render the prompt, with special tokens written out.

        Args:
            messages: the conversation, oldest first, each with `role` and `content`.
            variables: all other names of the template.

        Raises:
            InvalidRequest: the template rejects these messages, or fails on them.
        """
        try:
            return self._template.render({**variables, "messages": messages})
        except TemplateError as error:
            reason = error.message or type(error).__name__
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            # Such a message can quote the conversation; its kind has to do.
            reason = type(error).__name__
        raise InvalidRequest(
            f"messages do not fit the model's chat template: {reason}", param="messages"
        )

    def render_open(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> str:
        """Render the prompt up to the end of the last message's text, for the model to continue.

        A mark finds the end of that text. A template that trims messages trims the mark's space,
        and would have trimmed trailing space of the text.

        Args:
            messages: as for `render`; the last one has a text.
            variables: as for `render`.

        Raises:
            InvalidRequest: the last message has no text, the template does not render it unchanged,
                or as for `render`.
        """
        *before, last = messages
        text = last.get("content")
        if not isinstance(text, str) or not text.strip():
            raise InvalidRequest(
                "the last of messages has no text to continue; add one, or set "
                "continue_final_message to false.",
                param="messages",
            )
        prompt = self.render([*before, {**last, "content": text + _END_MARK}], variables)
        end = prompt.rfind(_END_MARK.strip())
        if end < 0:
            raise InvalidRequest(
                "the model's chat template omits or changes the last of messages, so it cannot be "
                "continued; set continue_final_message to false.",
                param="messages",
            )
        opened = prompt[:end]
        return opened if prompt.startswith(_END_MARK, end) else opened.rstrip()


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}`: renders its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which a model would read literally.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
