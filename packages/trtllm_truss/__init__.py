"""Serve a TensorRT-LLM engine through Triton Inference Server as a Truss.

The layers, each of which imports only those before it:

* `errors`, `validation`, `requests`: the vocabulary of every layer.
* `settings`, `artifacts`, `engines`, `guides`: configuration, files and what they describe.
* `processes`, `triton`, `text`, `builder`: child processes, the server, the tokenizer, builds.
* `metrics`, `inference`, `serving`: counters, the life of a request, the life of the engine.
* `protocols`, `endpoints`: JSON bodies and the HTTP around them.
* `cli`: the commands.

`backends` runs inside Triton's processes. Importing this package imports none of them.
`tests/packaging/test_layers.py` checks the order.
"""

__version__ = "0.1.0"
