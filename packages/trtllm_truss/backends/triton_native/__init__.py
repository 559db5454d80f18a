"""Text models beside the engine, for clients that speak to Triton itself.

Triton runs each module that has a `TritonPythonModel` as a Python model of its own:
`preprocessing` turns a prompt and words into tensors of `tensorrt_llm`, `postprocessing` turns the
tokens of whole answers into text, and `bls` (`tensorrt_llm_bls`) takes a request from text to text.
The model `ensemble` is a pipeline of one step, `tensorrt_llm_bls`.

That is so because text needs state and order: what a token shows as depends on the tokens before
it, and only the end shows what had to be held back. Triton gives an ensemble's postprocessing
neither: it sees the tokens of one response, in any of its processes, and never learns which
response is the last. `bls` owns its request from the first token to the last, so its text is exact
however many instances of whatever model there are.

`query` reads a request of `bls`, `calls` asks other models, `answer` makes text of what the engine
says and `reply` sends it; `words` makes token lists of words, `config` reads parameters, and
`tensors` and `values` turn tensors into Python values and back.
"""
