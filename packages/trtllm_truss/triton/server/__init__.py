"""The server's process, from finding it to explaining its end.

In the order of a start: `installation`, `ports`, `mpi`, `command`, `process` with `output`, and
`readiness`. `diagnosis` explains an exit by `known_errors`; `metrics` reads Triton's own.
"""
