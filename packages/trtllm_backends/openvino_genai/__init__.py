"""A large language model on the CPU behind the tensors of Triton's `tensorrt_llm` model.

`triton_model` receives a request from Triton, `token_model` validates its tensors, `scheduler`
queues it, steps the engine and turns its tokens into responses, and `engine` owns OpenVINO GenAI's
pipeline. `guided` has each guide checked by the program `grammar_compiler_worker`, and compiled
while the engine steps; `guide_compiler` compiles in both. `guided` also reads long prompts in
parts. Triton loads `model`.
"""

import sys

# `import openvino` reports to Google Analytics and leaves a file in the home folder, unless the
# package that does so is missing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
