"""Model output to text, reasoning and tool calls.

`parser.OutputParser` reads the text of one answer as it arrives and gives `events`. It runs a
`parser.ReasoningFormat` and then a `tool_format.ToolFormat`, found by name or from a chat template.
`tool_format.CallGuide` describes a forced call for guided decoding.

A format is a generator over an `events.Source`: it yields where it needs more text, so a cut in the
text cannot change what it finds. It writes to an `events.Emitter`. `values` reads JSON and Python
literals without recursion. `formats` has those of all models but gpt-oss, whose reasoning is part
of its format.

Guarantees:

* A call is announced (`CallStarted`) once its name and the beginning of its arguments are certain.
  Its arguments stream as JSON from there on.
* A failure before that makes the call text, verbatim: broken calls, calls cut off by the length
  limit, functions that the request does not offer.
* A failure after that ends the call with `complete=False`; the rest, from the fault on, is text.
  With `complete=True` the arguments are one whole JSON object.
* Time is linear in the text. Held text is limited to `events.MAX_HELD`, nesting to
  `values.MAX_DEPTH`.
"""
