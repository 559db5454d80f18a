"""Code that runs inside Triton, in processes of its Python backend.

- `llm_api`, `openvino_genai`: the backends of checkpoints and of the CPU engine;
- `token_model`: requests and responses of both;
- `triton_native`: NVIDIA's text models;
- `tensors`: reads requests and config.pbtxt, and fits NumPy 2 to older stubs;
- `kill_parent_on_death`: ends Triton if the process dies.

The server, `trtllm_truss`, imports nothing of it.
"""
