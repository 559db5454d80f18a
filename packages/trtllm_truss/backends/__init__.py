"""Code that runs inside Triton, in processes of its Python backend.

The backends of an engine are in the folders of their kinds, such as `engines.cpu.openvino_genai`;
they share the reading of requests and the shapes of responses in `token_model`. The text models in
`triton_native` import `errors`, `text` and `triton`. All use `tensors`, which reads requests and
config.pbtxt and fits NumPy 2 to older stubs, and
`kill_parent_on_death`, which ends Triton if their process dies.
"""
