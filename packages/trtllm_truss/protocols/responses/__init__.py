"""OpenAI's `/v1/responses`: bodies in, responses and their events out. Nothing is stored.

Written against OpenAI's API reference (https://platform.openai.com/docs/api-reference/responses)
and the types of its Python client, which the tests validate every produced object with.

`body` reads fields, and `items` the input. `output` builds the items of an answer; `answers` builds
whole responses and event streams. `adapter` is the interface for endpoints.
"""
