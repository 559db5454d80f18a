"""Small bodies whose fields multiply: prompts, choices, messages and tools times all others."""

from __future__ import annotations

from typing import Any

from benchmarks.hostile.body import (
    CHAT,
    COMPLETIONS,
    INVOCATIONS,
    RESPONSES,
    HostileBody,
    chat,
    dumps,
)  # fmt: skip

_PROMPTS = ["a"] * 256
_WORDS = [f"{number:02d}".ljust(64, "x") for number in range(64)]
"""As many stop words as fit: 4,096 characters."""

_LONG_WORDS = [f"{number:02d}".ljust(256, "x") for number in range(64)]
_FEW = ("4096 characters",)
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {f"field{number:04d}": {"type": "integer"} for number in range(1000)},
    "additionalProperties": False,
}
_GUIDE = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": _SCHEMA, "strict": True},
}
_IDS = [[1] * 2000] * 256


def _completion(**fields: Any) -> Any:
    return dumps(**{"prompt": _PROMPTS, "max_tokens": 1, **fields})


def _tools(count: int) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"f{number}", "parameters": {"type": "object"}}}
        for number in range(count)
    ]


PRODUCTS = [
    HostileBody("256 prompts, 64 stop words of 256 letters", COMPLETIONS,
                _completion(stop=_LONG_WORDS), ("stop", *_FEW)),
    HostileBody("256 prompts, 64 stop words", COMPLETIONS, _completion(stop=_WORDS), (), 200),
    HostileBody("256 echoes, 64 stop words", COMPLETIONS,
                _completion(stop=_WORDS, max_tokens=0, echo=True), (), 200),
    HostileBody("256 inputs, 64 stop sequences", INVOCATIONS,
                dumps(inputs=_PROMPTS, parameters={"stop_sequences": _WORDS, "max_new_tokens": 1}),
                (), 200),
    HostileBody("256 inputs, 64 stop sequences of 256 letters", INVOCATIONS,
                dumps(inputs=_PROMPTS, parameters={"stop_sequences": _LONG_WORDS}),
                ("stop_sequences", *_FEW)),
    HostileBody("256 prompts, 64 stop ids", COMPLETIONS,
                _completion(stop_token_ids=list(range(10, 74))), (), 200),
    HostileBody("256 prompts, 64 bad words", COMPLETIONS, _completion(bad_words=_WORDS), (), 200,
                needs_tools=True),
    HostileBody("32 prompts, a strict schema of 1,000 fields", COMPLETIONS,
                _completion(prompt=_PROMPTS[:32], response_format=_GUIDE), (), 200),
    HostileBody("256 prompts, 8 choices, running usage", COMPLETIONS,
                _completion(n=8, best_of=8, temperature=1, stream=True,
                            stream_options={"include_usage": True,
                                            "continuous_usage_stats": True}), (), 200,
                needs_tools=True),
    HostileBody("256 prompts of 2,000 ids, echo", COMPLETIONS,
                dumps(prompt=_IDS, max_tokens=0, echo=True), (), 200),
    HostileBody("256 prompts of 2,000 ids, log probabilities", COMPLETIONS,
                dumps(prompt=_IDS, max_tokens=0, echo=True, logprobs=5),
                ("prompt",)),  # at most 131072 ids; none at all with the LLM API
    HostileBody("256 inputs of 4,000 tokens, details", INVOCATIONS,
                dumps(inputs=["1 " * 2000] * 256,
                      parameters={"details": True, "decoder_input_details": True,
                                  "max_new_tokens": 1}), ("at most 131072",)),
    HostileBody("128 choices, 64 stop words", CHAT,
                chat(n=128, stop=_WORDS, temperature=1), (), 200, needs_tools=True),
    HostileBody("128 choices, 64 tools", CHAT,
                chat(n=128, temperature=1, tools=_tools(64)), (), 200, needs_tools=True),
    HostileBody("forced call of 16 tools, 4 choices", CHAT,
                chat(n=4, temperature=1, tools=_tools(16), tool_choice="required"), (), 200),
    HostileBody("3,000 messages, 1,024 tools", RESPONSES,
                dumps(input=[{"role": "user", "content": "a"}] * 3000, max_output_tokens=1,
                      tools=[each["function"] | {"type": "function"} for each in _tools(1024)]),
                ("tokens long",), needs_tools=True),
]  # fmt: skip
