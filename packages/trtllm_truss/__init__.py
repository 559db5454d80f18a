"""Serve a TensorRT-LLM engine through Triton Inference Server as a Truss.

The layers, each of which imports only those before it:

* `errors`, `literals`, `validation`, `requests`: vocabulary of all layers.
* `settings`, `artifacts`, `engines`, `guides`: configuration, downloads, engine files, guides.
* `processes`, `triton`, `text`, `tool_calls`: child processes, the server, tokenizers, tool calls.
* `builder`: engine builds.
* `metrics`, `inference`, `serving`: metrics, the request path, the engine's lifecycle.
* `protocols`, `configuration`, `endpoints`: JSON bodies, config.yaml as a whole, HTTP.
* `cli`: commands.

`backends` runs inside Triton's processes. Importing this package imports none of them.
`tests/packaging/test_layers.py` checks the order.
"""

__version__ = "0.1.0"
