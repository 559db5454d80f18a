"""The Truss's own protocol: one body, answered with text, events or JSON.

`body` reads it, `adapter` writes its answers and errors.
"""
