"""Triton Inference Server: its model repository, its process and its wire format.

`model_repository` writes what Triton loads, `client` sends requests, and `server` starts, watches
and stops the process. This package handles token ids only; other packages decode text.
"""
