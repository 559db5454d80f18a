"""Text models next to the engine, for clients of Triton itself.

Triton runs each module with a `TritonPythonModel` as a separate Python model: `preprocessing` turns
a prompt and words into tensors of `tensorrt_llm`, `postprocessing` decodes the tokens of whole
outputs, and `bls` (`tensorrt_llm_bls`) serves a request from text to text. The model `ensemble` is
a pipeline of one step, `tensorrt_llm_bls`.

The ensemble has one step because text needs state and order: a token's text depends on the tokens
before it, and held-back text is released only at the end. An ensemble's postprocessing has neither:
it receives the tokens of one response, in any of its processes, and never learns which response is
the last. `bls` owns its request from the first token to the last, so its text is exact for any
number of instances.

`calls` calls other models; `tensors` reads parameters, converts texts and numbers to tensors and
back, and decodes the engine's responses.
"""
