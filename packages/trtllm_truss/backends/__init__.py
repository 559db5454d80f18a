"""What runs inside Triton, in processes of its Python backend.

The engine `openvino_genai` imports `errors`, `engines` and `guides`. The text models in
`triton_native` import `errors`, `text` and of `triton` how its failures read and where its port is.
Both use `numpy_abi`, which NumPy needs in a process of Triton's, and `lifeline`, which ends Triton
if their process dies.
"""
