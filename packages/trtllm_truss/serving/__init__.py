"""The lifecycle of the engine.

`service` is the entry: `preparation` validates the engine and writes Triton's model repository,
`supervisor` starts Triton and restarts it.
"""
