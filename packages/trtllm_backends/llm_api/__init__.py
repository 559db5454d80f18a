"""A Hugging Face checkpoint in TensorRT-LLM's LLM API behind Triton's `tensorrt_llm` model.

`triton_model` receives a request from Triton; `request` (with `token_model`) validates and converts
its tensors and reads config.pbtxt; `engine` serves it on the only event loop that may use the LLM,
and monitors its output. `library` imports TensorRT-LLM, probes its version and watches its
processes. Triton loads `model`.
"""
