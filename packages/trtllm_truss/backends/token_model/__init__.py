"""Code that the Python backends behind the tensors of Triton's `tensorrt_llm` model share.

`request` (with `tensors`, `sampling`, `words` and `unsupported`) validates a request's tensors,
`responses` shapes responses like TensorRT-LLM's C++ backend, `triton` sends them and passes the log
to Triton, and `parameters` reads config.pbtxt.
"""
