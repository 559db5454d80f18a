"""OpenAI's `/v1/completions` and `/v1/chat/completions`: bodies in, objects and chunks out.

Written against OpenAI's API reference (https://platform.openai.com/docs/api-reference) and the
types of its Python client, which the tests validate every produced object with.

`body` reads bodies, with the shared fields in `fields` and tools in `tools`. `answers` builds the
choices of either API, whole objects, event streams and errors. `adapter` is the interface for
endpoints.
"""
