"""Clients that cost little: each load runs in a process of its own, `python -m benchmarks.load`."""
