"""Serve a TensorRT-LLM engine through Triton Inference Server as a Truss.

The rooms, each importing only those above it: `errors`, `settings`, `artifacts`, `engines`,
`triton`, `text`, `serving`, `protocols`, `backends` (runs inside Triton, imports nothing above),
`cli`. Importing this package itself imports none of them.
"""

__version__ = "0.1.0"
