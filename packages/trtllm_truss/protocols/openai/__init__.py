"""OpenAI's `/v1/completions` and `/v1/chat/completions`: bodies in, objects and chunks out.

Written against OpenAI's API reference (https://platform.openai.com/docs/api-reference) and the
types of its Python client, which the tests validate every produced object with.

`completions` and `chat` read bodies; `fields` holds what both have in common; `shapes` are the
objects of either API, `answers` puts them together and writes errors; `adapter` is what an endpoint
uses.
"""
