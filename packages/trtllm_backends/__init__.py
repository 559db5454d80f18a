"""Code that runs inside Triton, in processes of its Python backend.

- `llm_api`, `openvino_genai`: the backends for checkpoints and for the CPU engine;
- `token_model`: requests and responses of both;
- `triton_native`: NVIDIA's text models;
- `tensors`: reads requests and config.pbtxt, and adapts NumPy 2 to older stubs;
- `kill_parent_on_death`: kills Triton if the process dies.

The server, `trtllm_truss`, imports nothing from it.
"""
