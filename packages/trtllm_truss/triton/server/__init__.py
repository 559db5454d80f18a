"""The server's process: start it, watch it, explain its exit.

In the order of a start: `command` and `process`, which explains an exit by `known_errors`.
"""

GRPC_ADDRESS_VARIABLE = "TRTLLM_TRUSS_TRITON_GRPC"
"""Environment variable with ``host:port`` of the server's gRPC endpoint, for models inside it."""
