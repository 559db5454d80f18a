"""Serve a TensorRT-LLM engine through Triton Inference Server as a Truss.

docs/architecture.md lists the layers; tests/packaging/test_layers.py checks their order. Importing
this package imports none of them.
"""

__version__ = "1.0.0"
