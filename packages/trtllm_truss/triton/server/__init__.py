"""The server's process: start it, watch it, explain its exit.

In the order of a start: `ports`, `command` and `process`, which explains an exit by `known_errors`.
"""
