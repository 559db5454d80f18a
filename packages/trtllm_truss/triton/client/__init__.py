"""Requests to Triton over gRPC, and their streams of tokens.

`client` opens a stream of tokens for a request, the first one included. `tensors` converts both
ways, `grpc_connection` transports messages, `failures` translates errors.
"""
