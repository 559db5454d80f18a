"""Code shared by the Python backends that implement the tensors of Triton's `tensorrt_llm` model.

`request` validates a request's tensors, `responses` holds the output while it is generated and
shapes responses like TensorRT-LLM's C++ backend, and `triton` sends responses and passes the log to
Triton.
"""
