"""OpenAI's `/v1/completions` and `/v1/chat/completions`: bodies in, objects and chunks out.

Written against OpenAI's API reference (https://platform.openai.com/docs/api-reference) and the
types of its Python client, with which the tests validate every produced object.

`body` reads bodies, with the shared fields in `fields` and tools in `tools`. `answers` builds the
choices of both APIs, whole objects, event streams and errors. `adapter` is the interface to the
endpoints.
"""
