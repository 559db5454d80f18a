"""The life of the engine: prepared, started, watched, restarted, stopped.

`service` owns it all. `preflight` checks the engine before the start, `rendering` writes Triton's
model repository, `supervisor` starts Triton and restarts it.
"""
