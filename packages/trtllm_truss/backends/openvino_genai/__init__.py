"""A large language model on the CPU behind the tensors of Triton's `tensorrt_llm` model.

A request's way through the modules: `triton_model` takes it from Triton, `request` (with
`tensors`, `sampling`, `words`, `guides`, `guide_misreading` and `unsupported`) reads and judges its
tensors, `scheduler` queues it and steps the engine, `engine` (with `parameters`, `model_files`,
`gguf` and `decoding`) owns OpenVINO GenAI's pipeline, `generation` turns its tokens into responses
and `answer` gives those the shapes that TensorRT-LLM's C++ backend gives them. A guide is first
tried by `guide_check` in a program of its own, `guide_trial`. `model` is where Triton comes in,
`lifeline` ends Triton if this process dies.
"""

import sys

# `import openvino` tells Google Analytics of itself and leaves a file in the home folder, unless
# the package that does so is missing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
