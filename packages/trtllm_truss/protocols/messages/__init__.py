"""Anthropic's Messages API: bodies in, messages and events out.

Written against Anthropic's API reference (https://platform.claude.com/docs/en/api/messages) and the
types of its Python client, which the tests validate every produced object with.

`fields` holds the body's fields, `conversation` reads its turns and `options` its tools, thinking
and output format; `body` puts them together. `adapter` turns text into content blocks, and these
into messages and events.
"""
