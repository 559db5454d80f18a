"""All formats by name: their words only.

Add new formats here. Names are those of vLLM or TensorRT-LLM where these have the format.
"""

from __future__ import annotations

from collections.abc import Mapping

from trtllm_truss.tool_calls.formats import MarkerFormat
from trtllm_truss.tool_calls.grammars import JsonGrammar, NamedGrammar, PythonGrammar, XmlGrammar
from trtllm_truss.tool_calls.harmony import HarmonyFormat, HarmonyReasoning
from trtllm_truss.tool_calls.reasoning import ReasoningFormat
from trtllm_truss.tool_calls.tool_format import ToolFormat
from trtllm_truss.tool_calls.values import GemmaScanner

_PYTHON = PythonGrammar()

_HERMES = JsonGrammar(prefix="<tool_call>\n", suffix="\n</tool_call>")
_LLAMA = JsonGrammar(separators=(";",), keys=("name", "parameters"))
_GRANITE = JsonGrammar(prefix="<|tool_call|>", writes_array=True)
_PHI = JsonGrammar(prefix="<|tool_call|>", suffix="<|/tool_call|>", writes_array=True)
_NEMOTRON = JsonGrammar(prefix="<TOOLCALL>", suffix="</TOOLCALL>", writes_array=True)
_TOOL_CALLS = JsonGrammar(prefix="<tool_calls>", suffix="</tool_calls>", writes_array=True)
_LFM = JsonGrammar(prefix="<|tool_call_start|>", suffix="<|tool_call_end|>", writes_array=True)
_COMMAND = JsonGrammar(
    prefix="<|START_ACTION|>",
    suffix="<|END_ACTION|>",
    writes_array=True,
    keys=("tool_name", "parameters"),
)
_APERTUS = JsonGrammar(prefix="<|tools_prefix|>", suffix="<|tools_suffix|>", has_names_as_keys=True)
_INKLING = JsonGrammar(
    prefix="<|content_invoke_tool_json|>", suffix="<|end_message|>", keys=("name", "args")
)
_MISTRAL_JSON = JsonGrammar(prefix="[TOOL_CALLS]", writes_array=True)
_MISTRAL_NAMED = NamedGrammar(
    separators=("[ARGS]",), id_marker="[CALL_ID]", written=("[TOOL_CALLS]NAME[ARGS]", "")
)

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEP, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCED = (f"{_CALLS}{_CALL}function{_SEP}NAME\n```json\n", f"\n```{_CALL_END}{_CALLS_END}")
_UNFENCED = (f"{_CALLS}{_CALL}NAME{_SEP}", f"{_CALL_END}{_CALLS_END}")


def _deepseek(written: tuple[str, str]) -> MarkerFormat:
    grammar = NamedGrammar(separators=(_SEP,), kinds=True, fences=("```",), written=written)
    return MarkerFormat((grammar,), (_CALLS, _CALL), closers=(_CALL_END, _CALLS_END))


_KIMI = NamedGrammar(
    separators=("<|tool_call_argument_begin|>",),
    prefix="functions.",
    has_index=True,
    written=(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0"
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
)
_QWEN_XML = XmlGrammar(
    calls=("<function=",),
    tag_end=">",
    parameters=("<parameter=",),
    value_end="</parameter>",
    ends=("</function>",),
    lines=True,
)
_MINIMAX_XML = XmlGrammar(
    calls=('<invoke name="',),
    tag_end=">",
    parameters=('<parameter name="',),
    value_end="</parameter>",
    ends=("</invoke>",),
)
_NS = "]<]minimax[>["
_MINIMAX3_XML = XmlGrammar(
    calls=(f'{_NS}<invoke name="',),
    tag_end=">",
    parameters=(f"{_NS}<",),
    value_end=f"{_NS}</KEY>",
    ends=(f"{_NS}</invoke>",),
)


def _dsml(space: str) -> XmlGrammar:
    return XmlGrammar(
        calls=(f'<｜DSML｜{space}invoke name="',),
        tag_end=">",
        parameters=(f'<｜DSML｜{space}parameter name="',),
        value_end=f"</｜DSML｜{space}parameter>",
        ends=(f"</｜DSML｜{space}invoke>",),
    )


_DSML = (_dsml(""), _dsml(" "))
_DSML_SECTIONS = ("function_calls>", "tool_calls>", " calls>")


def _argument_tags(name: str, after_name: tuple[str, ...] = ()) -> XmlGrammar:
    """Return the grammar of GLM and its relatives, with separate tags for keys and values."""
    return XmlGrammar(
        after_name=after_name,
        parameters=(f"<{name}_key>",),
        key_end=f"</{name}_key>",
        value_start=f"<{name}_value>",
        value_end=f"</{name}_value>",
        ends=("</tool_call>",),
    )


_KIMI3_XML = XmlGrammar(
    calls=('<|open|>call tool="',),
    tag_end="<|sep|>",
    parameters=('<|open|>argument key="',),
    value_end="<|close|>argument<|sep|>",
    ends=("<|close|>call<|sep|>",),
    json_block=('<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"),
    written=(
        '<|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|>'
        '<|open|>json type="object"<|sep|>',
        "<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
)
_KIMI3_TOKENS = (
    *("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    *("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
)

TOOL_FORMATS: Mapping[str, ToolFormat] = {
    # Hermes 2 Pro and 3, Qwen 2.5 and 3, Granite 4, EXAONE 4, SmolLM3, Ernie 4.5, MiMo, Bielik.
    "hermes": MarkerFormat((_HERMES,), ("<tool_call>",), closers=("</tool_call>",)),
    # Qwen3-Coder and 3.5, Nemotron 3, Step 3.5, Seed-OSS.
    "qwen3_coder": MarkerFormat(
        (_QWEN_XML, _HERMES),
        ("<tool_call>", "<seed:tool_call>", "<function="),
        closers=("</tool_call>", "</seed:tool_call>"),
    ),
    "glm45": MarkerFormat(
        (_argument_tags("arg"), _HERMES),
        ("<tool_call>",),
        tokens=("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "kimi_k2": MarkerFormat(
        (_KIMI,),
        ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        closers=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        described_by=("<|im_system|>tool_declare",),
    ),
    "kimi_k3": MarkerFormat(
        (_KIMI3_XML,),
        ("<|open|>tools<|sep|>", '<|open|>call tool="'),
        closers=("<|close|>tools<|sep|>",),
        tokens=_KIMI3_TOKENS,
    ),
    "deepseek_v3": _deepseek(_FENCED),
    "deepseek_v31": _deepseek(_UNFENCED),
    "deepseek_v32": MarkerFormat(
        _DSML,
        (*(f"<｜DSML｜{section}" for section in _DSML_SECTIONS), *_DSML[0].calls, *_DSML[1].calls),
        closers=tuple(f"</｜DSML｜{section}" for section in _DSML_SECTIONS),
        tokens=("｜DSML｜",),
    ),
    "minimax_m2": MarkerFormat(
        (_MINIMAX_XML,),
        ("<minimax:tool_call>", *_MINIMAX_XML.calls),
        closers=("</minimax:tool_call>",),
    ),
    "minimax_m3": MarkerFormat(
        (_MINIMAX3_XML,),
        (f"{_NS}<tool_call>", *_MINIMAX3_XML.calls),
        closers=(f"{_NS}</tool_call>",),
        tokens=(_NS,),
    ),
    "mistral": MarkerFormat((_MISTRAL_JSON, _MISTRAL_NAMED), ("[TOOL_CALLS]",)),
    "mistral_args": MarkerFormat((_MISTRAL_NAMED, _MISTRAL_JSON), ("[TOOL_CALLS]",)),
    "harmony": HarmonyFormat(),
    "llama3_json": MarkerFormat(
        (_LLAMA, _PYTHON),
        ("<|python_tag|>", "<|python_start|>"),
        line_markers="{[",
        closers=("<|python_end|>",),
    ),
    # Llama 3.2 and 4, with vLLM's templates.
    "pythonic": MarkerFormat(
        (_PYTHON,),
        ("<|python_start|>", "<|python_tag|>"),
        line_markers="[",
        closers=("<|python_end|>",),
        described_by=("[func_name1(",),
    ),
    "gemma4": MarkerFormat(
        (NamedGrammar(prefix="call:", scanner=GemmaScanner),),
        ("<|tool_call>",),
        closers=("<tool_call|>",),
        tokens=('<|"|>', "<|tool_response>", "<tool_response|>"),
    ),
    # Nemotron Nano v2, Super and Ultra.
    "nemotron": MarkerFormat((_NEMOTRON,), ("<TOOLCALL>",), closers=("</TOOLCALL>",)),
    "granite": MarkerFormat(
        (_GRANITE,),
        ("<|tool_call|>", "<tool_call>"),
        closers=("</tool_call>", "<|/tool_call|>"),
        described_by=("<|start_of_role|>available_tools",),
    ),
    "phi4_mini": MarkerFormat(
        (_PHI,),
        ("<|tool_call|>", "functools"),
        closers=("<|/tool_call|>",),
        described_by=("<|tool|>", "<|/tool|>"),
    ),
    "command_r7b": MarkerFormat((_COMMAND,), ("<|START_ACTION|>",), closers=("<|END_ACTION|>",)),
    "lfm2": MarkerFormat(
        (_PYTHON, _LFM),
        ("<|tool_call_start|>",),
        closers=("<|tool_call_end|>",),
        described_by=("<|tool_list_start|>",),
    ),
    "olmo3": MarkerFormat((_PYTHON,), ("<function_calls>",), closers=("</function_calls>",)),
    "apertus": MarkerFormat((_APERTUS,), ("<|tools_prefix|>",), closers=("<|tools_suffix|>",)),
    # Apriel, and Hunyuan A13B. Later Hunyuan models write one tag per argument.
    "apriel": MarkerFormat((_TOOL_CALLS,), ("<tool_calls>",), closers=("</tool_calls>",)),
    "hunyuan": MarkerFormat(
        (_TOOL_CALLS, _argument_tags("arg", ("<tool_sep>",))),
        ("<tool_calls>", "<tool_call>"),
        closers=("</tool_calls>",),
        tokens=(
            *("</tool_call>", "<tool_sep>"),
            *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        ),
    ),
    "inkling": MarkerFormat(
        (_INKLING,),
        ("<|message_model|>", "<|content_invoke_tool_json|>"),
        closers=("<|end_message|>",),
        implied="<|message_model|>",
        has_header=True,
        tokens=("<|content_text|>", "<|content_model_end_sampling|>"),
    ),
    "telechat4": MarkerFormat(
        (_HERMES, _argument_tags("param")),
        ("<tool_call>",),
        tokens=("</tool_call>", "<param_key>", "</param_key>", "<param_value>", "</param_value>"),
    ),
    "json": MarkerFormat(
        (JsonGrammar(separators=(";", ","), writes_array=True),), line_markers="{["
    ),
}
"""Call formats by their names in `serving.tool_parser`.

`mistral_args` reads the same as `mistral` and forces calls in the form of Small 3.2; `deepseek_v31`
relates to `deepseek_v3` in the same way. `json` forces calls of formats without JSON.

Sources, by name: the chat templates of NousResearch/Hermes-2-Pro and Qwen/Qwen3 (hermes; vLLM's
`tool_chat_template_hermes.jinja` writes the arguments before the name),
Qwen/Qwen3-Coder-30B-A3B-Instruct (which drops tags: https://github.com/ollama/ollama/pull/17914),
ByteDance-Seed/Seed-OSS-36B-Instruct, zai-org/GLM-4.6 and GLM-4.7-Flash, moonshotai/Kimi-K2,
deepseek-ai/DeepSeek-V3, V3.1, V3.2 and V4, MiniMaxAI/MiniMax-M2, mistralai/Mistral-Nemo, Small 3.2
and Ministral-3 (tokenizer version 11 has no `[ARGS]`), meta-llama/Llama-3.1 and 3.3 (which writes
`<|python_tag|>f(a=1)`: https://github.com/meta-llama/llama-models/issues/266; vLLM's
`tool_chat_template_llama3.1_json.jinja` takes several calls with `;`), Meta's prompt formats
(https://www.llama.com/docs/model-cards-and-prompt-formats), google/gemma-4-31B-it,
nvidia/NVIDIA-Nemotron-Nano-9B-v2, ibm-granite/granite-3.3-2b-instruct (`<tool_call>[…]` in 3.0),
microsoft/Phi-4-mini-instruct (its card; `functools[…]` in vLLM's
`tool_chat_template_phi4_mini.jinja`), CohereForAI/c4ai-command-r7b-12-2024, LiquidAI/LFM2-8B-A1B,
allenai/Olmo-3, swiss-ai/Apertus-8B-Instruct, ServiceNow-AI/Apriel-1.5 and 1.6; TensorRT-LLM's
`tensorrt_llm/serve/tool_parser` (kimi_k3, minimax_m3, inkling, telechat4 and DeepSeek's V4.1);
vLLM's `hunyuan_a13b` and `hy_v3` parsers (hunyuan).
"""


def _think(name: str = "think", wrappers: tuple[tuple[str, str], ...] = ()) -> ReasoningFormat:
    end = f"</{name}>"
    return ReasoningFormat((f"<{name}>",), (end,), f"\n{end}", wrappers=wrappers)


_RESPONSE = ("<response>", "</response>")

REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "qwen3": _think(wrappers=(_RESPONSE,)),
    "deepseek_r1": _think(wrappers=(_RESPONSE,)),
    "granite": ReasoningFormat(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
        "\n\nHere is my response:",
    ),
    "mistral": ReasoningFormat(
        ("[THINK]",),
        ("[/THINK]",),
        "[/THINK]",
        "",
        dropped=frozenset(("[THINK]", "[/THINK]")),
    ),
    "seed_oss": _think("seed:think"),
    "reasoning_tags": _think("reasoning"),
    "hunyuan": _think(wrappers=(("<answer>", "</answer>"),)),
    "minimax_m3": _think("mm:think"),
    "gemma4": ReasoningFormat(
        ("<|channel>thought",),
        ("<channel|>",),
        "\n<channel|>",
        "",
        is_single=False,
        dropped=frozenset(("<|channel>", "<channel|>", "<|think|>")),
        repeats=True,
    ),
    "command_r7b": ReasoningFormat(
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        "<|END_THINKING|>",
        "",
        "<|START_RESPONSE|>",
        dropped=frozenset(
            (
                *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>"),
                *("<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
            )
        ),
    ),
    "apertus": ReasoningFormat(
        ("<|inner_prefix|>",),
        ("<|inner_suffix|>",),
        "<|inner_suffix|>",
        "",
        dropped=frozenset(("<|inner_prefix|>", "<|inner_suffix|>")),
    ),
    "apriel": ReasoningFormat(
        ("Here are my reasoning steps:",),
        ("[BEGIN FINAL RESPONSE]",),
        "\n[BEGIN FINAL RESPONSE]",
        "\n",
        wrappers=(("", "[END FINAL RESPONSE]"),),
    ),
    "kimi_k3": ReasoningFormat(
        ("<|open|>think<|sep|>",),
        ("<|close|>think<|sep|>",),
        "<|close|>think<|sep|>",
        "",
        "<|open|>response<|sep|>",
        dropped=frozenset(
            (*_KIMI3_TOKENS, "<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        ),
    ),
    "inkling": ReasoningFormat(
        ("<|content_thinking|>",),
        ("<|end_message|>",),
        "<|end_message|>",
        "<|message_model|>",
        "<|content_text|>",
        is_single=False,
        dropped=frozenset(
            (
                *("<|message_model|>", "<|content_thinking|>", "<|content_text|>"),
                *("<|end_message|>", "<|content_model_end_sampling|>"),
            )
        ),
        repeats=True,
    ),
    "harmony": HarmonyReasoning(
        ("<|channel|>analysis<|message|>",),
        ("<|end|>",),
        "<|end|>",
        "<|start|>assistant",
        "<|channel|>final<|message|>",
        is_single=False,
        dropped=HarmonyFormat().dropped,
    ),
}
"""Reasoning formats by their names in `serving.reasoning_parser`.

`<think>` is used by DeepSeek R1 to V4, Qwen 3, GLM, Kimi K2, MiniMax M2, Nemotron, EXAONE 4,
SmolLM3, OLMo 3, LFM2.5, Step 3.5, Ernie 4.5 and Granite 3.3, the last two followed by `<response>`.
`granite` is used by Granite 3.2; quantized models write `Here's` (vLLM's
`granite_reasoning_parser`). `reasoning_tags` is for fine-tuned models. The other sources are those
of the call formats, vLLM's `apertus` and `hunyuan_a13b` parsers, and TensorRT-LLM's
`reasoning_parser.py`.
"""
