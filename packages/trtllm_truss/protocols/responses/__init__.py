"""OpenAI's `/v1/responses`: bodies in, responses and their events out; nothing is stored.

Written against OpenAI's API reference (https://platform.openai.com/docs/api-reference/responses)
and the types of its Python client, with which the tests validate every produced object.

`body` reads the fields and the input. `adapter` builds the output items, whole responses and event
streams.
"""
