"""Bounds on what one body may hold, beside `serving.max_body_bytes`.

Each keeps the work on the event loop for one request below a tenth of a second.
"""

from __future__ import annotations

MAX_NESTING = 64
"""Arrays and objects within each other. Templates and encoders recurse deeper than the parser."""

MAX_CONTAINERS = 1 << 16
"""Arrays and objects in all."""

MAX_STRINGS = 1 << 16
"""Strings in all, keys included."""

MAX_KEYS = 1 << 15
"""Keys in all: each unknown one costs a kilobyte when it is refused."""

MAX_VALUES = 1 << 19
"""Items in all, such as the token ids of prompts."""

MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 4096
MAX_TOOLS = 1024
MAX_TOOL_CALLS = 1024
MAX_PROMPTS = 256
MAX_BIASED_TOKENS = 1024

MAX_MODEL_CHARACTERS = 256
"""Of the name that every event echoes."""

MAX_WORDS = 64
"""Stop words, and bad words."""

MAX_WORD_CHARACTERS = 256

MAX_GUIDE_CHARACTERS = 1 << 16
"""A JSON schema, a regular expression or a grammar."""
