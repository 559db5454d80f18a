"""Requests to Triton over gRPC, and their streams of tokens.

`engine_messages` has requests and chunks in token ids. `client` opens a stream of tokens for a
request, the first one included. `tensors` converts both ways, `logits` computes log probabilities,
`grpc_connection` transports messages, `failures` translates errors.
"""
