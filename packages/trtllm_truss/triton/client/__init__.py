"""Requests to Triton over gRPC, and their streams of tokens.

`client` opens a `response_stream` for a `request`. `tensors` and `responses` convert both ways,
`grpc_connection` and `grpc_call` transport them, `failures` translates errors. `warm_up` sends the
first request.
"""
