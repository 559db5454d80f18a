"""Generate docs/anthropic.md."""

from __future__ import annotations

from tools.docs.tables import field_rows, table, unsupported_rows

from trtllm_truss.protocols.conversation.blocks import ECHOED
from trtllm_truss.protocols.messages.body import (
    REFUSED,
    REFUSED_TOOL_KEYS,
    UNUSED,
    UNUSED_TOOL_KEYS,
    MessagesExtensions,
    MessagesFields,
)

_INTRODUCTION = """\
# Anthropic's API

`POST /v1/messages` accepts Anthropic's clients. This page is generated from
`packages/trtllm_truss/protocols/messages/` (`make docs`).

```python
from anthropic import Anthropic

client = Anthropic(base_url="http://localhost:8080", api_key="none")
with client.messages.stream(
    model="any",
    max_tokens=200,
    messages=[{"role": "user", "content": "What is machine learning?"}],
) as stream:
    for text in stream.text_stream:
        print(text, end="")
```

- A null field counts as omitted. Any other field outside the tables below is rejected by name, as
  is a field that the loaded engine does not support. The headers `anthropic-version` and
  `anthropic-beta` are ignored.
- Omitted fields take their defaults from `model_metadata.generation` in `config.yaml`, then from
  the model's `generation_config.json`, then from Anthropic: temperature 1, which draws from all
  tokens. `temperature` 0 is greedy, [on each engine](engines.md#choice-of-tokens). `max_tokens` is
  required, as in Anthropic's API.
- `max_tokens` may exceed the context: the answer then ends there with the `stop_reason`
  `model_context_window_exceeded`. Other stop reasons are `end_turn`, `max_tokens`,
  `stop_sequence`, with the matched word as `stop_sequence`, and `tool_use`.
- Content blocks are `text`, `tool_use` and `tool_result`, `thinking` and `redacted_thinking`; the
  last one is dropped. Other blocks are refused by type with 400; in a `tool_result`, images and
  other media become `[image omitted]`, so that an agent goes on, and search results, text documents
  and references to tools their text.
- Adjacent messages of one role become one, in which results come first. A last message by the
  assistant is continued, which needs text at its end and a chat template that renders it unchanged.
- System messages after the first one, such as Claude Code's, stay in their place or are moved, as
  [the chat template](openai.md#conversations-and-the-chat-template) needs it.
- A stream has named events: `message_start`, for each block `content_block_start`,
  `content_block_delta` and `content_block_stop`, then `message_delta` with the stop reason and the
  usage, then `message_stop`. `message_start` reports 0 tokens, because the engine counts them at
  the end. Silence is filled with comments instead of `ping`. A failed stream ends with an `error`
  event.
- `usage.cache_read_input_tokens` counts the part of the prompt that the engine
  [found in its KV cache](metrics.md#cached-tokens), and `input_tokens` the rest, as Anthropic
  defines them. Where the engine does not tell, the former is absent and the latter is the whole.
- Errors are `{"type": "error", "error": {"type", "message"}}`: 400 `invalid_request_error`, 413
  `request_too_large`, 429 `rate_limit_error`, 503 `overloaded_error`, 504 `timeout_error`, 500
  `api_error`. The message of a context overflow begins with `prompt is too long`. The headers
  `X-Request-Id` and `Request-Id` are the id in the answer, and `engine_request_id` in the log.
- `POST /v1/messages/count_tokens` counts the tokens of the prompt, also of one that is longer than
  the context. The batches of messages do not exist.

## Claude Code and other agents

The settings of Claude Code are in [clients.md](clients.md#claude-code); `make clients` runs it.

- The base URL ends before `/v1`. `serve` checks no credentials; behind a host, the host checks
  them. Clients send `ANTHROPIC_AUTH_TOKEN` as `Authorization: Bearer …` and `ANTHROPIC_API_KEY` as
  `x-api-key`.
- Agents need a model that calls tools well and has a long context: the demo's, SmolLM2-135M, does
  neither.

## `/v1/messages`
"""

_TOOLS = """\
## Tools, thinking and structured output

The formats of calls and reasoning are found by asking the model's chat template, or named by
`serving.tool_parser` and `serving.reasoning_parser` ([settings](settings.md)). Calls, forced calls
and templates without tools work as in [OpenAI's API](openai.md#tools-and-reasoning).

- Tools have the type `custom` or none. Server tools, such as web search, and Anthropic's own
  client tools, such as `bash_20250124`, are refused by type.
- `any` and `tool` are enforced by guided decoding, with `disable_parallel_tool_use` to one call;
  with `auto` it returns the first call only. `strict: true` of a tool works as in
  [OpenAI's API](openai.md#tools-and-reasoning). {unused} are accepted without effect.
- A call that was cut off or is broken becomes text. In a stream a begun block cannot be taken back:
  its JSON ends early, and `stop_reason` is not `tool_use` unless another call is whole.
- A result with `is_error` reaches the model as `Error: …`, unless it begins with that word.
- Thoughts are `thinking` blocks with the constant signature `unsigned`, which nobody checks; sent
  back, they reach the chat template under the name that it reads. `display: omitted` empties them.
- `thinking` of type `enabled` and `disabled` sets the template's variables `enable_thinking` and
  `thinking`; `adaptive`, or no `thinking`, leaves the choice to the template. A model whose
  template has neither variable thinks as it always does. `budget_tokens` must be below `max_tokens`
  unless there are tools, and is not enforced: thoughts end where the model ends them, at
  `serving.reasoning_limit_tokens` or at `max_tokens`.
- `usage.output_tokens_details.thinking_tokens` counts thoughts, but for the models that
  [openai.md](openai.md#tools-and-reasoning) names.
- `output_config.format` constrains the whole text, so that the model cannot call tools unless a
  call is forced; a forced call ignores it. Both begin after the thoughts
  ([how](openai.md#structured-output-of-models-that-reason)). TensorRT-LLM engines need
  release 0.19 and `runtime.guided_decoding_backend: xgrammar` for it and for forced calls.
- Keys that clients echo in messages and blocks are ignored: {echoed}, and all that begin
  with `__`. Other unknown keys are refused by name.

Refused by name in tools:
"""


def messages_page() -> str:
    own = MessagesFields.model_fields.keys() - MessagesExtensions.model_fields.keys() | {"top_k"}
    columns = ["field", "passes if it is", "because"]
    unused = [[f"`{name}`", reason] for name, reason in sorted(UNUSED.items())]
    parts = [
        _INTRODUCTION,
        _served(own),
        "Accepted without effect:\n",
        table(["field", "because"], unused),
        "Refused by name:\n",
        table(columns, unsupported_rows(REFUSED)),
        _TOOLS.format(unused=_listed(UNUSED_TOOL_KEYS), echoed=_listed(ECHOED)),
        table(columns, unsupported_rows(REFUSED_TOOL_KEYS)),
        "## Beyond Anthropic's\n",
        "With Anthropic's Python client these go into `extra_body`.\n",
        _served(MessagesExtensions.model_fields.keys() - {"top_k"}),
    ]
    return "\n".join(parts)


def _served(names: set[str]) -> str:
    return table(["field", "default", "meaning"], field_rows(MessagesFields, sorted(names)))


def _listed(names: frozenset[str] | tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
