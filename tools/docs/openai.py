"""Generate docs/openai.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tools.docs.tables import field_rows, table, unsupported_rows

from trtllm_truss.guides.patterns import FORMATS
from trtllm_truss.inference.tokenization import MAX_COUNTED_TOKENS
from trtllm_truss.protocols.conversation import chat, items
from trtllm_truss.protocols.fields import Unsupported
from trtllm_truss.protocols.openai import body
from trtllm_truss.protocols.openai.fields import (
    REFUSED_EXTENSIONS,
    UNUSED_EXTENSIONS,
    OpenAIExtensions,
    SharedFields,
)
from trtllm_truss.protocols.responses import body as responses

_INTRODUCTION = """\
# OpenAI's API

`POST /v1/chat/completions`, `POST /v1/completions` and `POST /v1/responses` accept OpenAI's
clients. This page is generated from `packages/trtllm_truss/protocols/openai/` and `responses/`
(`make docs`).

<!-- contents -->
<!-- end -->

```python
from openai import OpenAI

client = OpenAI(base_url="http://localhost:8080/v1", api_key="none")
stream = client.chat.completions.create(
    model="any", messages=[{"role": "user", "content": "What is machine learning?"}], stream=True
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="")
```

- A field that cannot change the answer is accepted, as are null and the values in the tables
  below. A field that could is honoured, or refused by name, as are fields outside the tables and
  those that the loaded engine does not support.
- `/v1/completions` generates at most 16 tokens unless `max_tokens` or
  `model_metadata.generation.max_tokens` says otherwise; `/v1/chat/completions` generates until the
  model ends the answer, at most the rest of the context. Of `max_completion_tokens` and
  `max_tokens` the former counts.
- Omitted fields take their defaults from `model_metadata.generation` in `config.yaml`, then from
  the model's `generation_config.json`, then from OpenAI: temperature 1 and a random seed.
- Every choice of every prompt is a separate request to the engine: they run in parallel, each
  waits in the queue separately, and with a `seed` choice i uses `seed` + i. If one fails, all end;
  a client that disconnects cancels all of them.
- `finish_reason` is `stop` where the model or a stop text ended a choice, `length` where
  `max_tokens` did, `tool_calls` where the model ended it after a call. `usage` counts a prompt
  once, however many choices it has.
- A stop text ends a choice just before it, regardless of token boundaries, and is never returned,
  not even in part.
- A stream of `/v1/chat/completions` starts each choice with the role and ends it with its
  `finish_reason`; with `stream_options.include_usage` the usage follows, then `[DONE]`. A failed
  stream ends with an `error` event instead, which clients raise.
- An event stream without output sends a comment every `serving.keep_alive_s`. Some load generators,
  such as vLLM's and TensorRT-LLM's, cannot read comments: set it to 3600 for them.
- `usage.prompt_tokens_details.cached_tokens` counts the part of the prompt that the engine
  [found in its KV cache](metrics.md#cached-tokens); it is absent where the engine does not tell.
- `temperature` 0, `top_p` 0 and `top_k` 1 are greedy; temperature 1, the default, draws from all
  tokens. [The same on each engine](engines.md#choice-of-tokens).
- `top_logprobs: 1` and `logprobs: 1` are answered in greedy decoding by every engine: the chosen
  token is the likeliest one that penalties and guides leave.
- The CPU engine takes alternatives, and the log probabilities of a prompt (`echo` with `logprobs`),
  from a second copy of the model. They are the model's own, in FP32, before penalties, guides and
  temperature; the same request's chosen tokens have theirs from there too. The first such request
  loads the copy, for seconds, and up to four times the memory of the model's file; ten minutes
  without one drop it. Where memory lacks, they are refused with 400. Those that run together hold
  one context of tokens at most, beams are refused. Without alternatives `logprobs` are the
  generator's, which rounds activations to 8 bits: SmolLM2's vary by up to 0.2.
- A compiled engine has alternatives, and log probabilities of a prompt, if it was built with
  `--gather_all_token_logits`: [what it needs](engines.md#logits). They too are the model's own.
  Checkpoints have alternatives with the PyTorch sampler, and none of a prompt.
- `echo` with `logprobs` and `max_tokens` 0 returns the prompt's tokens alone. With `max_tokens` 1
  an end of sequence counts as the one token: callers who score a prompt, such as lm_eval, cut it
  off.
- In `/v1/completions` alternatives are named by their texts; of those with the same text the
  likeliest counts.
- Errors are `{"error": {"message", "type", "param", "code"}}`: 400 `invalid_request_error`, 429
  `rate_limit_error`, other statuses `server_error`; `code` is the same as everywhere else. The
  header `X-Request-Id` is the id in the answer, and `engine_request_id` in the log.
- A limit of tokens is cut down to what the prompt leaves of the context, and the answer then ends
  with `length`. A prompt that leaves nothing, or a limit above the whole context, gets 400 with the
  code `context_length_exceeded`; the message begins with `This model's maximum context length is`.
"""

_ROUTES = """\
## Other routes

Truss's server and [our own](deploy.md#a-server-of-its-own) answer these too:

| route | answer |
|---|---|
| `GET /v1/models`, `GET /v1/models/NAME` | `model_name` and adapters; 503 during a start |
| `GET /health`, `GET /health/ready` | 200 while the engine answers, else 503 |
| `GET /health/live` | 200 while the server runs |
| `GET /metrics` | [metrics](metrics.md) |
| `POST /v1/responses/input_tokens` | the tokens of a prompt, as OpenAI counts them |
| `POST /v1/messages/count_tokens` | the tokens of a prompt, as Anthropic counts them |
| `POST /tokenize` | as vLLM's: token ids of a `prompt` or of `messages` |
| `POST /detokenize` | as vLLM's: the text of `tokens` |

- `GET /v1/models/model` is Truss's check of readiness, whatever the model's name is. A name that is
  not in the list gets 404.
- `conversations` of a model says in one line what its chat template shows.
- Counts have no limit of context: one counts to decide what to cut. Up to {counted} tokens are
  counted, and an empty text has 0.
- `return_token_strs` of `/tokenize` returns the text of each token, without marks of the vocabulary
  such as `Ġ`.
- `POST /v1/embeddings` is refused with 404 and the code `not_served`.
- `/v1/websocket` is closed: Truss allows it only to models without `predict`.
- Baseten forwards a path to the container below `…/sync/`.
"""

_TOOLS = """\
## Tools and reasoning

The formats of calls and reasoning are found by asking the model's chat template, or named by
`serving.tool_parser` and `serving.reasoning_parser` ([settings](settings.md)). The template renders
a call, and the format that reads it is the model's; one that is in no table is made of the text
around the call. The log of a start and `check` say what was found. If a template shows functions
but no format of calls that is known, both warn, `tool_choice: auto` leaves calls in the content,
and the first such request is logged; forced calls work.

- `auto` reads the calls that the model writes; they become `tool_calls` as soon as they are
  certain. Calls of other functions, and calls that are broken or cut off before their arguments,
  stay text. In a stream, a call is announced when its arguments begin; if `max_tokens` cuts it,
  `finish_reason` is `length`. A whole message has a cut call as text, but as a call with partial
  arguments where `tool_choice` forces one.
- Models make mistakes, and calls are read in spite of them: missing and surplus brackets, closing
  words that lack, nothing or `null` for arguments, text between tags. Where arguments turn out not
  to be JSON, the rest of the call is added to them as it was written, for the caller to see.
- Markers of calls, such as `<tool_call>`, never reach the content, not even in an answer about
  them. Neither does a word that ends reasoning, such as `</think>`, unless a word that begins it
  precedes or it is in quotes.
- Whole calls at the end of reasoning that is never closed are calls: models forget to close it. All
  other calls in reasoning are part of it. Without a word that begins it, text before `</think>` is
  content: it was sent before that could be known.
- A call in a code fence is text, as Qwen2.5-Coder writes some: what a model shows must not be
  executed.
- `required` and a named function are enforced by guided decoding for every model: the prompt ends
  in the beginning of a call, and its JSON follows the schema in `parameters`. With `required`, a
  format that writes the name outside of the JSON is replaced by plain JSON. TensorRT-LLM engines
  need release 0.19 and `runtime.guided_decoding_backend: xgrammar`, which `init` writes.
- `strict: true` of a function refuses a forced call by name if the schema in `parameters` has
  something that is not kept (below). With `auto` the model writes the arguments, and nothing holds
  them to the schema; the first request of this kind is logged.
- `allowed_tools` restricts the functions that count as calls; the prompt holds all of them.
- `parallel_tool_calls: false` returns the first call only.
- `response_format` beside tools constrains the whole content, so that the model cannot call unless
  a call is forced; a forced call ignores it. Agents that send both, such as those of the OpenAI
  Agents SDK with `output_type`, need their tool mode: the type as one more tool.
- JSON that follows a schema has one blank after each comma and each colon, as most JSON on one line
  that models were trained on, and no other between its parts: small models filled answers with
  blanks. `disable_any_whitespace: false` allows any, in every API, and in `structured_outputs` as
  at vLLM. XGrammar in the engine gets a grammar that this server writes of the schema; LLGuidance
  reads schemas itself.
- Kept of a schema: `type`, `enum`, `const`, `$ref` with `#` and `#/…`, `anyOf`, `oneOf`, `allOf`,
  `properties`, `required`, `additionalProperties`, `patternProperties`, `propertyNames` (`pattern`,
  `enum`, `format`, lengths), `minProperties`, `maxProperties`, `items`, `prefixItems`, `minItems`,
  `maxItems`, `pattern`, `minLength`, `maxLength`, `minimum`, `maximum`, `exclusiveMinimum`,
  `exclusiveMaximum`, and `format`: {formats}.
- Not kept: `not`, `if`, `multipleOf`, `uniqueItems`, `contains`, `dependentRequired`,
  `dependentSchemas`; `oneOf` whose choices may overlap; `allOf`, or keywords beside `$ref`, `anyOf`
  and `oneOf`, where they cannot be joined (two of them with `anyOf`; `additionalProperties: false`
  in one and `properties` in another); `minProperties` above the named members and one more; in a
  `pattern`, looking ahead or behind, references to groups, `\\b`, `\\p{{…}}` and flags; patterns
  and lengths that need more than 400 states together. With `strict: true` such a schema is refused
  by name, as at OpenAI; else its other parts hold, and a line of the log names the keyword.
- Narrower than the schema, so that an answer is valid but not every valid one can come: members
  stand in the order of `properties`, further ones behind; an object with `properties` but without
  `additionalProperties` has no others; a key that two of `patternProperties` match, and one that
  begins like long names of `properties`, does not come; all of `prefixItems` come; a schema without
  `type` takes only the type of its keywords; numbers with bounds have at most 20 digits before the
  point and no exponent, integers no point; strings with a `pattern` or a length have only the
  escapes that JSON needs, and with a length above 128 none (no quote, no line break: XGrammar takes
  0.3 s for each token where it counts them); classes of a `pattern` have what ECMA 262 and Python
  agree on, such as `\\d` for 0 to 9.
- `finish_reason` is `tool_calls`, but `stop` after the call of a named function, as OpenAI's.
- Names of functions have letters, digits and `. _ -`.
- Keys that clients echo or note in messages are ignored: {echoed}, and all that begin with
  `__`; `reasoning`, `thinking`,
  `thought`, `reasoning_details`, `thinking_blocks` and parts of these types count as
  `reasoning_content`, the role `function` as `tool`.
  Other unknown keys are refused by name, as at OpenAI: they can hold what the model should read,
  such as `images`. vLLM drops them.
- `prefix: true` or `partial: true` in the last message, if that is the assistant's, means
  `continue_final_message`. The answer holds the continuation only, as at DeepSeek; Mistral repeats
  the prefix.
- Reasoning is `reasoning_content`, in messages and deltas. Its tokens, the end marker included, are
  part of `completion_tokens`, and `usage.completion_tokens_details.reasoning_tokens` counts them,
  but not those of `gemma4`, `harmony` and `inkling`, whose answers can reason several times.
- `logprobs` holds all generated tokens of an answer, those of reasoning and calls included.

### Conversations and the chat template

Templates differ in what they show. At the start the server renders small conversations with marker
words, and keeps for each question the first form whose markers are all in the prompt, in the order
of transformers and of the models' authors. Every conversation of a new outline is tried in the same
way before its first use, so no text is lost silently: it is written in a form that the template
shows, or refused with the reason. What was found is in the log of a start, in `trtllm-truss check`
(`--json`: each question with its answer) and in `GET /v1/models`.

- Plain conversations, and all others that the template shows whole, are rendered as by
  transformers.
- System messages stay where they are; where the template shows the first only, the others are
  appended to it, and where it shows none they begin the user's text.
- Where turns must alternate, neighbours of one role are joined.
- A call's text and several calls in one message are divided into turns where the template shows
  only one of them, each call followed by its result.
- Arguments reach the template as an object, or as JSON text for templates that join text. Those
  that are empty, blank or `null` are an empty object; others that hold no object, such as those
  that `max_tokens` cut, stay their text, within an object where the template needs one.
- Reasoning is passed under the key that the template reads. Templates omit that of earlier turns.
- Functions without `description` or `parameters`, and types that are lists or unknown, are
  completed or reduced in the prompt where the template fails on them.
- Where a template has no tools, as SmolLM2's, the functions and the form of a call are described in
  the system message; earlier calls become text of that form, and results become messages of the
  user in `<tool_response>`.
- `name` of a message reaches the template; where that does not show it, as all but Kimi's, the text
  begins with `NAME: `. Names that tell nothing are left out then: the same one of all messages of
  the assistant, which it would repeat in its answers, and that of a result's own function.
- Each call has an id of its own in the prompt, also where a client counts from `call_0` per turn.
- A result without its call stays a result, or becomes the user's text. Media in results, which no
  model here reads, become `[image omitted]`; in other messages they are refused.

### Structured output of models that reason

`response_format`, guided decoding and forced calls bind what follows the reasoning. This holds
where the template opens the reasoning, where the model opens it, and where a template ignores
`enable_thinking: false`; if the template closes it, or the model does not reason, they bind from
the first token. `serving.reasoning_parser: none` turns this off. So does a raw `prompt`: its caller
has written the template's part.

- Engines apply a guide from the first token on, so the reasoning and what follows are two requests
  to the engine, one after the other in the same place; the second one finds the prompt and the
  reasoning in the KV cache (`runtime.enable_kv_cache_reuse`). Deadlines, stop words, seed, usage,
  log line and metrics are those of one answer; `first_token_timeout_s` applies to both requests. A
  model with a format of reasoning that does not reason costs an additional request of a few tokens,
  which do not count.
- Two line breaks, or the header that the model's format has there, are put in after the reasoning.
  Text that is put in has no tokens in `usage` and `logprobs`.
- `max_tokens` limits both. If the reasoning uses it up, `finish_reason` is `length` and the content
  is empty.
- `serving.reasoning_limit_tokens` ends the reasoning earlier, with or without a guide: its end is
  put in, and the answer follows. An engine whose longest prompt is shorter than its context limits
  it, too.
- If the model ends its answer within the reasoning, the reasoning is closed and the guided part
  follows.
- Stop words also match in the reasoning, and then end the whole answer.
- Beam search is refused together with a guide, or with `serving.reasoning_limit_tokens`, where the
  model may reason.
- `min_tokens` above 1 is refused together with a guide by the CPU engine and by checkpoints.
"""


_RESPONSES = """\
## `/v1/responses`

```python
response = client.responses.create(model="any", input="What is machine learning?")
print(response.output_text)
```

- Nothing is stored: each request has the whole conversation. Append `response.output` and the
  results of functions to `input`, as agents do without a store; fields that refer to stored answers
  are refused by name.
- Items are of type `message` and `reasoning`, and calls of functions and custom tools with their
  outputs; content is text. Adjacent items of the assistant become one message for the chat
  template, and `instructions` joins a system message at the beginning. Reasoning is its `content`,
  or else its `summary`. Keys of items that clients echo are ignored: {echoed}, and all that
  begin with `__`.
- The answer has an item of reasoning if the model reasons, then text and calls in the order of
  writing. Tools, forced calls and reasoning are those of `/v1/chat/completions` above. The model
  knows a function in a `namespace` as `<namespace>__<name>`, and a `custom` tool as a function with
  the text `input`; answers have the caller's names. Built-in tools, such as `web_search`, and
  grammars of custom tools are refused by name.
- `status` is `incomplete` where `max_output_tokens` cut the answer. A call that was cut off is
  text; in a stream, where its item has begun, the item and the response end as `incomplete`.
- A stream has OpenAI's named events with `sequence_number`, from `response.created` to
  `response.completed`, `response.incomplete`, or `error` and `response.failed`. Errors before the
  first item have a status of their own.
- `input_tokens_details.cached_tokens` is 0 where the engine does not tell, because OpenAI's clients
  require the field.
- The fields beyond OpenAI's are those of `/v1/chat/completions`.
"""


def openai_page() -> str:
    own_chat = set(body.ChatFields.model_fields) - set(body.ChatExtensions.model_fields)
    own_completion = set(body.CompletionFields.model_fields) - set(
        body.CompletionExtensions.model_fields
    )
    shared = set(SharedFields.model_fields) - set(OpenAIExtensions.model_fields)
    own_responses = set(responses.ResponsesFields.model_fields) - set(
        body.ChatExtensions.model_fields
    )
    parts = [
        _INTRODUCTION,
        "## `/v1/chat/completions`\n",
        _served(body.ChatFields, own_chat | shared),
        _unused(body.CHAT_UNUSED),
        _refused(body.CHAT_REFUSED),
        _TOOLS.format(
            echoed=", ".join(f"`{key}`" for key in sorted(chat.ECHOED)),
            formats=", ".join(f"`{name}`" for name in FORMATS),
        ),
        "## `/v1/completions`\n",
        _served(body.CompletionFields, own_completion | shared),
        _unused(body.COMPLETION_UNUSED),
        _refused(body.COMPLETION_REFUSED),
        _RESPONSES.format(echoed=", ".join(f"`{key}`" for key in sorted(items.ECHOED))),
        _served(responses.ResponsesFields, (own_responses | shared) - responses.REFUSED.keys()),
        _unused(responses.UNUSED),
        _refused(responses.REFUSED),
        "## Beyond OpenAI's\n",
        "With OpenAI's Python client these go into `extra_body`.\n",
        _served(SharedFields, set(OpenAIExtensions.model_fields)),
        _unused(UNUSED_EXTENSIONS),
        _refused(REFUSED_EXTENSIONS),
        "In `/v1/chat/completions` and `/v1/responses`:\n",
        _served(
            body.ChatFields, set(body.ChatExtensions.model_fields) - set(SharedFields.model_fields)
        ),
        "In `/v1/completions`:\n",
        _served(
            body.CompletionFields,
            set(body.CompletionExtensions.model_fields) - set(SharedFields.model_fields),
        ),
        _ROUTES.format(counted=f"{MAX_COUNTED_TOKENS:,}"),
    ]
    return "\n".join(parts)


def _served(model: type[SharedFields], names: Iterable[str]) -> str:
    return table(["field", "default", "meaning"], field_rows(model, sorted(names)))


def _unused(fields: Mapping[str, str]) -> str:
    rows = [[f"`{name}`", reason] for name, reason in sorted(fields.items())]
    return "Accepted without effect:\n\n" + table(["field", "because"], rows)


def _refused(fields: Mapping[str, Unsupported]) -> str:
    rows = unsupported_rows(fields)
    return "Refused by name:\n\n" + table(["field", "passes if it is", "because"], rows)
