"""Code that runs inside Triton, in processes of its Python backend.

The engine `openvino_genai` imports `errors`, `engines` and `guides`, and shares the reading of
requests and the shapes of responses in `token_model`. The text models in `triton_native` import
`errors`, `text` and `triton`. Both use `tensors` and `parameters`, which read requests and
config.pbtxt, `numpy_abi`, which fits NumPy 2 to older stubs, and `kill_parent_on_death`, which ends
Triton if their process dies.
"""
