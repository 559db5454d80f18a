"""The parser of one answer, reasoning before it, and all formats by name and by chat template.

gpt-oss has one format for calls, reasoning and text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from trtllm_truss.requests import ReasoningWords
from trtllm_truss.tool_calls.events import (
    Emitter,
    Event,
    Malformed,
    Markers,
    Parse,
    ParsedText,
    ReasoningDelta,
    Source,
    Tool,
)
from trtllm_truss.tool_calls.formats import (
    DeepSeekFormat,
    JsonFormat,
    LlamaFormat,
    MistralFormat,
    PythonicFormat,
    XmlFormat,
    read_arguments,
)
from trtllm_truss.tool_calls.tool_format import CallGuide, ToolFormat, attempt, guide_each

_HEADERS = ("<|start|>", "<|channel|>")
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_HEADER_ENDS = Markers("<|message|>", *_ENDS)
_BODY_ENDS = Markers(*_ENDS, *_HEADERS)
_MAX_HEADER = 512
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class HarmonyFormat(ToolFormat):
    """Messages `<|start|>header<|message|>body<|end|>`, their kind in the header.

    `<|channel|>analysis` is reasoning, `final` and `commentary` are text, a message with
    `to=functions.f` anywhere in the header is a call with a JSON object as its body, ended by
    `<|call|>`. The prompt ends in `<|start|>assistant`, so the output begins inside of a header.
    `<|call|>` and `<|return|>` end an answer and need not show. Source:
    https://github.com/openai/harmony/blob/main/docs/format.md; calls in the analysis channel occur
    (https://github.com/vllm-project/vllm/pull/35907).
    """

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        return frozenset((*_HEADERS, *_ENDS, "<|message|>", "<|constrain|>"))

    def guides(self, tools: Sequence[Tool], *, parallel: bool) -> list[CallGuide]:
        """Describe a forced call."""
        begin, end = "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>"
        return guide_each(tools, lambda name: (begin + name + end, "<|call|>"))

    def parse(self, source: Source, emitter: Emitter, *, to_text: bool = False) -> Parse[None]:
        """Read messages to the end.

        Args:
            to_text: end behind the header of the first message that is text.
        """
        messages = _Messages(source, emitter, to_text)
        markers = Markers(*_HEADERS)
        marker = yield from source.literal(*_HEADERS, " to=", "to=")
        while marker := marker or (yield from source.until(markers, emitter.text)):
            messages.next_marker = ""
            source.hold(marker, _MAX_HEADER)
            yield from attempt(messages.read(marker), source, emitter)
            if messages.is_at_text:
                return
            marker = messages.next_marker


class _Messages:
    """Reads messages one by one.

    Args:
        to_text: leave the body of a message unread if it is text.

    Attributes:
        next_marker: the beginning of the next header, where it ended a body.
        is_at_text: whether such a body is next.
    """

    def __init__(self, source: Source, emitter: Emitter, to_text: bool) -> None:
        self._source = source
        self._emitter = emitter
        self._to_text = to_text
        self.next_marker = ""
        self.is_at_text = False

    def read(self, marker: str) -> Parse[None]:
        """Read the message that begins with the marker.

        Raises:
            Malformed: it has no body, or is a call that cannot be made.
        """
        pieces = [marker]
        if (yield from self._source.until(_HEADER_ENDS, pieces.append)) != "<|message|>":
            raise Malformed
        header = "".join(pieces)
        channel = _group(_CHANNEL, header)
        recipient = _group(_RECIPIENT, header)
        name = recipient.removeprefix("functions.")
        if self._emitter.offers(name):
            yield from self._read_call(name)
        elif recipient and (channel != "analysis" or name != recipient):
            raise Malformed
        else:
            yield from self._read_body(channel)

    def _read_call(self, name: str) -> Parse[None]:
        yield from read_arguments(name, self._source, self._emitter)
        yield from self._source.close(*_ENDS)

    def _read_body(self, channel: str) -> Parse[None]:
        self._source.release()
        if channel == "analysis":
            self._emitter.start_reasoning()
            end = yield from self._source.until(_BODY_ENDS, self._emitter.reasoning)
            self._emitter.end_reasoning()
        elif self._to_text:
            self.is_at_text = True
            return
        else:
            self._emitter.start_text()
            end = yield from self._source.until(_BODY_ENDS, self._emitter.text)
        self.next_marker = end if end in _HEADERS else ""


def _group(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""


@dataclass(frozen=True)
class ReasoningFormat(ReasoningWords):
    """Reasoning at the beginning of an answer, between two markers.

    White space around the markers is layout. Without an end marker all of the answer is reasoning.
    Calls inside of reasoning are reasoning.

    * `<think>…</think>`: DeepSeek R1 and V3.1, Qwen3, most others. Newer templates put `<think>` at
      the end of the prompt. Source: the templates of deepseek-ai/DeepSeek-R1 and Qwen/Qwen3.
    * `[THINK]…[/THINK]`: Magistral, Ministral 3. Source: the template of
      mistralai/Ministral-3-3B-Reasoning-2512.
    * `<seed:think>…</seed:think>`: Seed-OSS. Source: the template of
      ByteDance-Seed/Seed-OSS-36B-Instruct.
    * `Here is my thought process:`, `Here is my response:`: Granite 3.2. Source: its template;
      quantized models write `Here's` (vLLM's `granite_reasoning_parser`).
    * `<reasoning>…</reasoning>`: fine-tuned models.
    """

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        return frozenset((*self.starts, *self.ends))

    def before(self, tools: ToolFormat) -> ReasoningFormat:
        """Return the format of reasoning in front of calls in another format than the model's."""
        return self

    def parse(self, source: Source, emitter: Emitter) -> Parse[None]:
        """Read the reasoning, if there is any."""
        source.hold()
        try:
            yield from source.skip_space()
            start = yield from source.literal(*self.starts)
        except Malformed:
            start = ""
        space = source.release()
        if not start:
            emitter.text(space)
            return
        emitter.start_reasoning()
        yield from source.until(Markers(*self.ends), emitter.reasoning)
        emitter.end_reasoning()


_HARMONY = HarmonyFormat()


@dataclass(frozen=True)
class HarmonyReasoning(ReasoningFormat):
    """The analysis channel of gpt-oss. Reads the whole answer, calls included.

    Attributes:
        reads_calls: whether calls are gpt-oss's own; otherwise reading ends where the text of the
            `final` channel begins.
    """

    reads_calls: bool = True

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        return _HARMONY.special_tokens

    def before(self, tools: ToolFormat) -> ReasoningFormat:
        return self if isinstance(tools, HarmonyFormat) else replace(self, reads_calls=False)

    def parse(self, source: Source, emitter: Emitter) -> Parse[None]:
        """Read the answer to the end, or to its text."""
        yield from _HARMONY.parse(source, emitter, to_text=not self.reads_calls)


class OutputParser:
    """Splits the text of one answer into text, reasoning and tool calls.

    With adjacent deltas merged, the events do not depend on how the text is cut. Holds back only
    text that may still be a marker or the beginning of a call.

    Args:
        tools: how calls are written; None reads none.
        reasoning: how reasoning is written; None reads none, except with harmony, which always has.
        offered: the functions that may be called. None allows any name.
        parallel: whether the answer may have several calls; those after the first are dropped.
    """

    def __init__(
        self,
        tools: ToolFormat | None,
        reasoning: ReasoningFormat | None = None,
        offered: Sequence[Tool] | None = None,
        *,
        parallel: bool = True,
    ) -> None:
        self._parallel = parallel
        self._source = Source()
        self._emitter = Emitter(self._source, offered if tools else ())
        self._parse = self._read(tools, reasoning)

    def feed(self, text: str) -> list[Event]:
        """Read more text.

        Returns:
            The new events; often one.
        """
        self._source.feed(text)
        next(self._parse, None)
        return self._drain()

    def finish(self) -> list[Event]:
        """End the text.

        Returns:
            The last events. An announced call that is not whole ends with `complete=False`.
        """
        self._source.end()
        next(self._parse, None)
        self._emitter.finish()
        return self._drain()

    def _drain(self) -> list[Event]:
        events = self._emitter.drain()
        return events if self._parallel else [event for event in events if _is_kept(event)]

    def _read(self, tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> Parse[None]:
        if reasoning:
            yield from reasoning.parse(self._source, self._emitter)
        if tools:
            yield from tools.parse(self._source, self._emitter)
        yield from self._source.until(Markers(), self._emitter.text)


def _is_kept(event: Event) -> bool:
    return isinstance(event, ParsedText | ReasoningDelta) or event.index == 0


_HERMES = JsonFormat(
    markers=("<tool_call>",),
    closers=("</tool_call>",),
    prefix="<tool_call>\n",
    suffix="\n</tool_call>",
)
_LLAMA = LlamaFormat(
    markers=("<|python_tag|>", "<|python_start|>"),
    line_markers="{[",
    closers=("<|python_end|>",),
    separators=(";",),
    arguments_key="parameters",
)
_MISTRAL_MARKERS = ("[TOOL_CALLS]",)
_GRANITE = JsonFormat(
    markers=("<|tool_call|>", "<tool_call>"),
    closers=("</tool_call>", "<|/tool_call|>"),
    prefix="<|tool_call|>",
    writes_array=True,
)
_PHI = JsonFormat(
    markers=("<|tool_call|>", "functools"),
    closers=("<|/tool_call|>",),
    prefix="<|tool_call|>",
    suffix="<|/tool_call|>",
    writes_array=True,
)
_THINK = ReasoningFormat(("<think>",), ("</think>",), "\n</think>")

TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "hermes": _HERMES,
    "qwen3_coder": XmlFormat(
        markers=("<tool_call>", "<seed:tool_call>", "<function="),
        closers=("</tool_call>", "</seed:tool_call>"),
    ),
    "llama3_json": _LLAMA,
    "pythonic": PythonicFormat(
        markers=("<|python_start|>", "<|python_tag|>"),
        line_markers="[",
        closers=("<|python_end|>",),
    ),
    "mistral": MistralFormat(markers=_MISTRAL_MARKERS, prefix="[TOOL_CALLS]", writes_array=True),
    "mistral_args": MistralFormat(markers=_MISTRAL_MARKERS, writes_names=True),
    "deepseek_v3": DeepSeekFormat(is_fenced=True),
    "deepseek_v31": DeepSeekFormat(),
    "harmony": HarmonyFormat(),
    "granite": _GRANITE,
    "phi4_mini": _PHI,
    "json": JsonFormat(line_markers="{[", separators=(";", ","), writes_array=True),
}
"""Formats of calls by their names in `serving.tool_parser`.

Names are vLLM's where it has the format. `mistral_args` reads the same as `mistral` and forces
calls in the form of Small 3.2. `json` is for forced calls of formats without JSON.
"""

REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": _THINK,
    "qwen3": _THINK,
    "granite": ReasoningFormat(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
        "\n\nHere is my response:",
    ),
    "mistral": ReasoningFormat(("[THINK]",), ("[/THINK]",), "[/THINK]", ""),
    "seed_oss": ReasoningFormat(("<seed:think>",), ("</seed:think>",), "\n</seed:think>"),
    "reasoning_tags": ReasoningFormat(("<reasoning>",), ("</reasoning>",), "\n</reasoning>"),
    "harmony": HarmonyReasoning(
        ("<|channel|>analysis<|message|>",),
        ("<|end|>",),
        "<|end|>",
        "<|start|>assistant",
        "<|channel|>final<|message|>",
        is_single=False,
    ),
}
"""Formats of reasoning by their names in `serving.reasoning_parser`."""


_DEFAULT = "hermes"
"""The format of calls for chat templates without tools."""


def choose_formats(
    tools: str | None, reasoning: str | None, chat_template: str
) -> tuple[ToolFormat | None, ReasoningFormat | None]:
    """Return the formats by their names in the settings; ``auto`` is the chat template's."""
    if tools == "auto":
        tools = detect_tool_format(chat_template)
        tools = tools or (None if "tools" in chat_template else _DEFAULT)
    if reasoning == "auto":
        reasoning = detect_reasoning_format(chat_template)
    return TOOL_FORMATS.get(tools or ""), REASONING_FORMATS.get(reasoning or "")


def detect_tool_format(chat_template: str) -> str | None:
    """Return the name of the format in a chat template, or None."""
    return _detect(chat_template, _TOOL_TELLTALES)


def detect_reasoning_format(chat_template: str) -> str | None:
    """Return the name of the format in a chat template, or None."""
    return _detect(chat_template, _REASONING_TELLTALES)


def _contains(*texts: str, without: tuple[str, ...] = ()) -> Callable[[str], bool]:
    return lambda template: (
        all(text in template for text in texts) and not any(text in template for text in without)
    )


# The first match decides. GLM 4.5, which is not supported, has `<arg_key>` in `<tool_call>`.
_TOOL_TELLTALES: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("harmony", _contains("<|channel|>", "<|message|>")),
    ("deepseek_v3", _contains("<｜tool▁call▁begin｜>", "```json")),
    ("deepseek_v31", _contains("<｜tool▁call▁begin｜>")),
    ("mistral_args", _contains("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", _contains("[TOOL_CALLS]")),
    ("qwen3_coder", _contains("<function=", "<parameter=")),
    ("hermes", _contains("<|start_of_role|>", "<tool_call>\\n{")),
    ("granite", _contains("<|start_of_role|>", "tool")),
    ("phi4_mini", _contains("<|/tool_call|>")),
    ("phi4_mini", _contains("<|tool|>")),
    ("phi4_mini", _contains("functools[")),
    ("granite", _contains("<|tool_call|>")),
    ("hermes", _contains("<tool_call>", without=("<arg_key>",))),
    ("pythonic", _contains("func_name1(")),
    ("llama3_json", _contains("ipython", "parameters")),
    ("llama3_json", _contains("<|python_tag|>")),
)
_REASONING_TELLTALES: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("harmony", _contains("<|channel|>", "<|message|>")),
    ("mistral", _contains("[THINK]")),
    ("seed_oss", _contains("<seed:think>")),
    ("granite", _contains("Here is my thought process:")),
    ("deepseek_r1", _contains("</think>", "<｜Assistant｜>")),
    ("qwen3", _contains("</think>")),
    ("qwen3", _contains("<think>")),
    ("reasoning_tags", _contains("<reasoning>")),
)


def _detect(
    chat_template: str, telltales: tuple[tuple[str, Callable[[str], bool]], ...]
) -> str | None:
    return next((name for name, shows in telltales if shows(chat_template)), None)
