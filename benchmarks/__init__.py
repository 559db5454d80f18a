"""Measures the serving path: everything between the engine and the client, and nothing else.

`python -m benchmarks --help` says how; docs/performance.md is what came out.
"""
