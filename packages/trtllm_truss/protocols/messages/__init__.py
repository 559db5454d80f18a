"""Anthropic's Messages API: bodies in, messages and events out.

Written against Anthropic's API reference (https://platform.claude.com/docs/en/api/messages) and the
types of its Python client, with which the tests validate every produced object.

`body` turns a body into a request. `adapter` turns text into content blocks, and blocks into
messages and events.
"""
