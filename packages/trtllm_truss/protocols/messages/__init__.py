"""Anthropic's Messages API: bodies in, messages and events out.

Written against Anthropic's API reference (https://platform.claude.com/docs/en/api/messages) and the
types of its Python client, which the tests validate every produced object with.

`body` turns a body into a request. `adapter` turns text into content blocks, and these into
messages and events.
"""
