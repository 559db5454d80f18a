"""A Hugging Face checkpoint in TensorRT-LLM's LLM API behind Triton's `tensorrt_llm` model.

`triton_model` receives a request from Triton, `request` (with `token_model`) validates its tensors,
converts it and reads config.pbtxt, and `engine` serves it on the one event loop that the LLM may be
used from, and watches the LLM's answers. `library` imports TensorRT-LLM, probes its version and
watches its processes. Triton loads `model`.
"""
