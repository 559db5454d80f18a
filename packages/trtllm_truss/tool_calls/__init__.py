"""Model output to text, reasoning and tool calls.

`parser.OutputParser` reads the text of one answer as it arrives and gives `events`. It runs a
`reasoning.ReasoningFormat` and then a `tool_format.ToolFormat`. `tool_format.CallGuide` describes a
forced call for guided decoding.

A format is data: the words of a model, in `catalog`, around one of the `grammars`, which `formats`
puts behind markers. gpt-oss has a class of its own, `harmony`, because its reasoning is part of its
format. `detection` finds a model's formats by asking its chat template.

Reading is a generator over a `source.Source`: it yields where it needs more text, so a cut in the
text cannot change what it finds. It writes to an `emitter.Emitter`. `values` reads JSON and other
literals without recursion.

Guarantees:

* A call is announced (`CallStarted`) once its name and the beginning of its arguments are certain.
  Its arguments stream as JSON from there on.
* A failure before that makes the call text: broken calls, calls cut off by the length limit,
  functions that the request does not offer.
* A failure after that ends the call with `complete=False`; its arguments end with the rest of the
  call as the model wrote it. With `complete=True` they are one whole JSON object.
* Control words of the formats, such as `<tool_call>`, are never part of the text.
* Time is linear in the text. Held text is limited to `source.MAX_HELD`, nesting to
  `values.MAX_DEPTH`.
"""
