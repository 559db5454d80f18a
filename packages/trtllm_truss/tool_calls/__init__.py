"""Model output to text, reasoning and tool calls.

`parser.OutputParser` reads the text of one answer as it arrives and gives `events`. It runs a
`reasoning.ReasoningFormat` and then a `tool_format.ToolFormat`. `registry` finds both by name or
from a chat template. `guides` describes a forced call for guided decoding.

A format is a generator over a `source.Source`: it yields where it needs more text, so a cut in the
text cannot change what it finds. It writes to an `emitter.Emitter`. `values` reads JSON and Python
literals without recursion. The formats: `json_format` (Hermes, Llama, Mistral, Granite, Phi),
`xml_format` (Qwen3-Coder), `pythonic_format` (Llama), `deepseek_format`, and `harmony_format`
(gpt-oss).

Guarantees:

* A call is announced (`CallStarted`) once its name and the beginning of its arguments are certain.
  Its arguments stream as JSON from there on.
* A failure before that makes the call text, verbatim: broken calls, calls cut off by the length
  limit, functions that the request does not offer.
* A failure after that ends the call with `complete=False`; the rest, from the fault on, is text.
  With `complete=True` the arguments are one whole JSON object.
* Time is linear in the text. Held text is limited to `source.MAX_HELD`, nesting to
  `values.MAX_DEPTH`.
"""
