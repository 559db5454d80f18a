"""The path of a request between its protocol and Triton.

`generation` is the entry: `preprocessing` validates a request and builds a `PreparedRequest`,
`admission` queues it for a slot, and `answer_reader` turns the engine's tokens into text.
"""
