"""Reasoning that comes before an answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtllm_truss.requests import ReasoningWords
from trtllm_truss.tool_calls.events import Emitter
from trtllm_truss.tool_calls.harmony_format import HarmonyFormat
from trtllm_truss.tool_calls.source import Malformed, Markers, Parse, Source
from trtllm_truss.tool_calls.tool_format import ToolFormat


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
