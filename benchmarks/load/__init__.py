"""Cheap clients; each load is a separate process, `python -m benchmarks.load`."""
