"""Split model output into text, reasoning and tool calls.

`parser.OutputParser` reads the text of one choice as it arrives and returns `events`. It runs a
`reasoning.ReasoningFormat` and then a `tool_format.ToolFormat`. `tool_format.CallGuide` describes a
forced call for guided decoding.

A format is data: a model's words, in `catalog`, around one of the `grammars`, which `formats`
places behind markers. gpt-oss has a separate class, `harmony`, because its reasoning is part of its
format. `detection` finds a model's formats by rendering its chat template.

Reading is a generator over a `source.Source`: it yields when it needs more text, so splitting the
text differently cannot change the result. It writes to an `emitter.Emitter`. `values` reads JSON
and other literals without recursion.

Guarantees:

* A call is announced (`CallStarted`) once its name and the start of its arguments are certain. From
  then on its arguments stream as JSON.
* A failure before that turns the call into text: broken calls, calls cut off by the length limit,
  functions that the request does not offer.
* A failure after that finishes the call with `complete=False`; its arguments end with the rest of
  the call as the model wrote it. With `complete=True` they are one whole JSON object.
* Control words of the formats, such as `<tool_call>`, are never part of the text.
* Time is linear in the text. Held text is limited to `source.MAX_HELD`, and nesting to
  `values.MAX_DEPTH`.
"""
