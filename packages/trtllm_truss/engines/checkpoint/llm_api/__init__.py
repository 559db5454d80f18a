"""A Hugging Face checkpoint in TensorRT-LLM's LLM API behind Triton's `tensorrt_llm` model.

`triton_model` receives a request from Triton, `request` (with `token_model`) validates its tensors,
and `engine` serves it on the one event loop that the LLM may be used from: `sampling_params`
converts the request, `generation` turns the LLM's cumulative outputs into responses. `library`
imports TensorRT-LLM and probes its version, `parameters` reads config.pbtxt, `workers` watches the
LLM's processes and `life_signs` its answers. Triton loads `model`.
"""
