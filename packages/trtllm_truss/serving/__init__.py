"""The lifecycle of the engine.

`service` is the entry: `preflight` validates the engine before the start, `preparation` writes
Triton's model repository, `supervisor` starts Triton and restarts it.
"""
