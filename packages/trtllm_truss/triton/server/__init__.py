"""The server's process: start it, watch it, explain its exit.

- `command`: the argument vector and the environment;
- `mpi`: Open MPI's part of both, and its control port;
- `mpi`: Open MPI's part of both, and its control port;
- `process`: the supervised child process;
- `diagnosis`, `known_errors`: the cause of its end, in our words.
"""

GRPC_ADDRESS_VARIABLE = "TRTLLM_TRUSS_TRITON_GRPC"
"""Environment variable with ``host:port`` of the server's gRPC endpoint, for models inside it."""
