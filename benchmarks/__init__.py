"""Measure the serving path between the engine and the client.

`python -m benchmarks --help` lists the options; docs/performance.md has the results.
"""
