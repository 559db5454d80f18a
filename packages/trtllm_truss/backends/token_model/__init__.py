"""Code that the Python backends behind the tensors of Triton's `tensorrt_llm` model share.

`request` (with `sampling`, `words` and `unsupported`) validates a request's tensors,
`responses` shapes responses like TensorRT-LLM's C++ backend, `running` holds an answer while it is
generated, and `triton` sends responses and passes the log to Triton.
"""
