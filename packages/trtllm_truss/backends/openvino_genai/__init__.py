"""A large language model on the CPU behind the tensors of Triton's `tensorrt_llm` model.

A request's way through the modules: `triton_model` takes it from Triton, `request` (with
`tensors`, `sampling`, `words` and `unsupported`) reads and judges its tensors, `scheduler` queues
it and steps the engine, `engine` (with `parameters`, `model_files`, `gguf` and `decoding`) owns
OpenVINO GenAI's pipeline, `generation` turns its tokens into responses and `answer` gives those
the shapes that TensorRT-LLM's C++ backend gives them. `model` is where Triton comes in,
`lifeline` ends Triton if this process dies.
"""
