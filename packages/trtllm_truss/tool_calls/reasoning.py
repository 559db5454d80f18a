"""Reasoning that comes before an answer."""

from __future__ import annotations

from dataclasses import dataclass

from trtllm_truss.tool_calls.emitter import Emitter
from trtllm_truss.tool_calls.harmony_format import HarmonyFormat
from trtllm_truss.tool_calls.source import Malformed, Markers, Parse, Source


@dataclass(frozen=True)
class ReasoningFormat:
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

    Attributes:
        starts: words that begin the reasoning.
        ends: words that end it.
    """

    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        return frozenset((*self.starts, *self.ends))

    def is_open(self, prompt: str) -> bool:
        """Return whether a rendered prompt ends inside of reasoning."""
        return prompt.rstrip().endswith(self.starts)

    def parse(self, source: Source, emitter: Emitter, starts_inside: bool) -> Parse[None]:
        """Read the reasoning, if there is any."""
        source.hold()
        try:
            yield from source.skip_space()
            start = yield from source.literal(*self.starts)
        except Malformed:
            start = ""
        space = source.release()
        if not (start or starts_inside):
            emitter.text(space)
            return
        emitter.start_reasoning()
        yield from source.until(Markers(*self.ends), emitter.reasoning)
        emitter.end_reasoning()


_HARMONY = HarmonyFormat()


@dataclass(frozen=True)
class HarmonyReasoning(ReasoningFormat):
    """The analysis channel of gpt-oss. Reads the whole answer, calls included."""

    @property
    def special_tokens(self) -> frozenset[str]:
        """Words that may be special tokens and must not be skipped in decoding."""
        return _HARMONY.special_tokens

    def is_open(self, prompt: str) -> bool:
        """Return False: the output names its channels itself."""
        return False

    def parse(self, source: Source, emitter: Emitter, starts_inside: bool) -> Parse[None]:
        """Read the answer to the end."""
        yield from _HARMONY.parse(source, emitter)
