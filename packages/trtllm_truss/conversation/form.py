"""The form in which a conversation is written for one chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Form:
    """The options of a writer. The defaults are the form that `transformers` documents.

    Attributes:
        tool_template: use the template named `tool_use` for requests with tools, or also for those
            with calls.
        parts: roles whose content is a list of parts instead of a text.
        system: leave system messages in place, append later ones to the first, or move all into the
            user's text.
        names: give authors' names as the key `name`, or at the start of their texts.
        joins: join neighbouring turns of the same role.
        opens_with_user: text of a user turn inserted before a conversation that starts with the
            assistant; None to insert none.
        after_result: text of an assistant turn inserted between a result and a user turn; None to
            insert none.
        drops_blank: omit turns without text and calls.
        calls: let the template write calls, or write them into the text as the model would.
        results: write results into the text as results, or as the user's text.
        blank: content of a turn with calls and no text: None, an empty text, or no key.
        splits_text: write text and calls of one turn as two turns.
        one_call: write one call per turn, each followed by its result.
        arguments: write arguments as an object, as JSON in a text, or as an object of texts.
        odd_arguments: write arguments that are not an object as text, or inside an object.
        ids: write call ids as given, as nine letters and digits, or as `functions.NAME:N`.
        named_results: add the function's name to results.
        orphans: write results without a call as results, or as the user's text.
        reasoning: key of the reasoning; `part` and `parts` for a part of the content, whose
            `thinking` is a text or a list of parts; `every` for all keys at once, in a probe; empty
            to omit it.
        tools: pass tools in the template's variable `tools` or `xml_tools`, in a system message
            with a key `tools` that contains functions as JSON or as a list, or in a text that
            describes them; `every` for the variables and the key with JSON at once, in a probe;
            without the latter if system messages are moved into the user's text.
        empty_tools: give a request without tools an empty list of them instead of None.
        fills_description: add a description to each function without one.
        fills_parameters: add parameters to each function, and these properties.
        simple_types: reduce parameter schemas to types that every template supports.
    """

    tool_template: Literal["tools", "calls"] = "tools"
    parts: frozenset[str] = frozenset()
    system: Literal["anywhere", "first", "user"] = "anywhere"
    names: Literal["key", "text"] = "key"
    joins: bool = False
    opens_with_user: str | None = None
    after_result: str | None = None
    drops_blank: bool = False
    calls: Literal["template", "text"] = "template"
    results: Literal["tool", "user"] = "tool"
    blank: Literal["none", "empty", "absent"] = "none"
    splits_text: bool = False
    one_call: bool = False
    arguments: Literal["object", "text", "texts"] = "object"
    odd_arguments: Literal["text", "object"] = "text"
    ids: Literal["given", "short", "functions"] = "given"
    named_results: bool = False
    orphans: Literal["tool", "user"] = "tool"
    reasoning: str = "reasoning_content"
    tools: Literal["variable", "xml_tools", "system_json", "system_list", "text", "every"] = (
        "variable"
    )
    empty_tools: bool = False
    fills_description: bool = False
    fills_parameters: bool = False
    simple_types: bool = False
