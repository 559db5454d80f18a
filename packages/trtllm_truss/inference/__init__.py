"""The life of a request between its protocol and Triton.

`generation` is the entry: `preprocessing` checks a request and builds a `prepared_request`,
`admission` lets it wait for a slot, `decode_stream` turns the engine's tokens into text, and
`merge_streams` joins the answers of one call.
"""
