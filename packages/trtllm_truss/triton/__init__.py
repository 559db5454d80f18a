"""Triton Inference Server: its model repository, its process and its wire format.

Knows token ids and nothing of text. `model_repository` writes what Triton loads, `client` sends
requests to it, `server` finds, starts, watches and stops it.
"""
