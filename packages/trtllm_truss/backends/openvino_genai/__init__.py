"""A large language model on the CPU behind the tensors of Triton's `tensorrt_llm` model.

A request's way through the modules: `triton_model` takes it from Triton, `request` (with
`tensors`, `sampling`, `words`, `guides` and `unsupported`) reads and judges its tensors,
`scheduler` queues it and steps the engine, `engine` (with `parameters`, `model_files`, `gguf` and
`decoding`) owns OpenVINO GenAI's pipeline, `generation` turns its tokens into responses and
`answer` gives those the shapes that TensorRT-LLM's C++ backend gives them. With a guide it is first
with `guided`, which has the guide checked in a program, `grammar_compiler_worker`, and compiled
beside the engine's steps; `guide_compiler` compiles in both. `model` is where Triton comes in.
"""

import sys

# `import openvino` tells Google Analytics of itself and leaves a file in the home folder, unless
# the package that does so is missing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
