"""Code that the Python backends behind the tensors of Triton's `tensorrt_llm` model share.

`request` validates a request's tensors, `responses` holds an answer while it is generated and
shapes responses like TensorRT-LLM's C++ backend, and `triton` sends responses and passes the log to
Triton.
"""
