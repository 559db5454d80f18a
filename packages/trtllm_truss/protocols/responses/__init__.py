"""OpenAI's `/v1/responses`: bodies in, responses and their events out. Nothing is stored.

Written against OpenAI's API reference (https://platform.openai.com/docs/api-reference/responses)
and the types of its Python client, which the tests validate every produced object with.

`body` reads the fields and the input. `adapter` builds the items of an answer, whole responses and
event streams.
"""
