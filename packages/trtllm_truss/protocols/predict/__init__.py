"""The predict protocol: one body, answered with text, events or JSON.

`body` parses it, `adapter` encodes answers and errors.
"""
