"""Formats by name, and their detection in chat templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trtllm_truss.tool_calls.deepseek_format import DeepSeekFormat
from trtllm_truss.tool_calls.harmony_format import HarmonyFormat
from trtllm_truss.tool_calls.json_format import JsonFormat, LlamaFormat, MistralFormat
from trtllm_truss.tool_calls.pythonic_format import PythonicFormat
from trtllm_truss.tool_calls.reasoning import HarmonyReasoning, ReasoningFormat
from trtllm_truss.tool_calls.tool_format import ToolFormat
from trtllm_truss.tool_calls.xml_format import XmlFormat

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


def detect_tool_format(chat_template: str) -> str | None:
    """Return the name of the format in a chat template, or None."""
    return _detect(chat_template, _TOOL_TELLTALES)


def detect_reasoning_format(chat_template: str) -> str | None:
    """Return the name of the format in a chat template, or None."""
    return _detect(chat_template, _REASONING_TELLTALES)


def _shows(*texts: str, without: tuple[str, ...] = ()) -> Callable[[str], bool]:
    return lambda template: (
        all(text in template for text in texts) and not any(text in template for text in without)
    )


# The first match decides. GLM 4.5, which is not supported, has `<arg_key>` in `<tool_call>`.
_TOOL_TELLTALES: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("harmony", _shows("<|channel|>", "<|message|>")),
    ("deepseek_v3", _shows("<｜tool▁call▁begin｜>", "```json")),
    ("deepseek_v31", _shows("<｜tool▁call▁begin｜>")),
    ("mistral_args", _shows("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", _shows("[TOOL_CALLS]")),
    ("qwen3_coder", _shows("<function=", "<parameter=")),
    ("hermes", _shows("<|start_of_role|>", "<tool_call>\\n{")),
    ("granite", _shows("<|start_of_role|>", "tool")),
    ("phi4_mini", _shows("<|/tool_call|>")),
    ("phi4_mini", _shows("<|tool|>")),
    ("phi4_mini", _shows("functools[")),
    ("granite", _shows("<|tool_call|>")),
    ("hermes", _shows("<tool_call>", without=("<arg_key>",))),
    ("pythonic", _shows("func_name1(")),
    ("llama3_json", _shows("ipython", "parameters")),
    ("llama3_json", _shows("<|python_tag|>")),
)
_REASONING_TELLTALES: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("harmony", _shows("<|channel|>", "<|message|>")),
    ("mistral", _shows("[THINK]")),
    ("seed_oss", _shows("<seed:think>")),
    ("granite", _shows("Here is my thought process:")),
    ("deepseek_r1", _shows("</think>", "<｜Assistant｜>")),
    ("qwen3", _shows("</think>")),
    ("qwen3", _shows("<think>")),
    ("reasoning_tags", _shows("<reasoning>")),
)


def _detect(
    chat_template: str, telltales: tuple[tuple[str, Callable[[str], bool]], ...]
) -> str | None:
    return next((name for name, shows in telltales if shows(chat_template)), None)
