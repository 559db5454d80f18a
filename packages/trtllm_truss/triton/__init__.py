"""Triton Inference Server: its model repository, its process and its wire format.

`model_repository` writes what Triton loads, `client` sends requests to it, `server` starts,
watches and stops it. Everything here works on token ids; text is decoded elsewhere.
"""
