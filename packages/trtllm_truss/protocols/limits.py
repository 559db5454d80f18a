"""Limits of one body in addition to `serving.max_body_bytes`.

Each keeps the work of one request on the event loop below 100 ms.
"""

from __future__ import annotations

MAX_NESTING = 64
"""Nesting of arrays and objects. Templates and encoders recurse deeper than the parser."""

MAX_CONTAINERS = 1 << 16
"""Arrays and objects in all."""

MAX_STRINGS = 1 << 16
"""Strings in all, keys included."""

MAX_KEYS = 1 << 15
"""Keys in all: each unknown one costs a kilobyte when rejected."""

MAX_VALUES = 1 << 19
"""Items in all, such as the token ids of prompts."""

MAX_FRACTIONS = 1 << 16
"""Points and exponents of numbers in all: such a number takes ten times as long as an integer."""

MAX_DIGITS = 128
"""Digits of a number: the time to read one grows with their square."""

MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 4096
MAX_TOOLS = 1024
MAX_TOOL_CALLS = 1024
MAX_ALL_TOOL_CALLS = 4096
MAX_PROMPTS = 256
MAX_BIASED_TOKENS = 1024

MAX_MODEL_CHARACTERS = 256
"""Length of the name that every event repeats."""

MAX_WORDS = 64
"""Stop words, and bad words."""

MAX_WORD_CHARACTERS = 256

MAX_GUIDE_CHARACTERS = 1 << 16
"""Length of a JSON schema, a regular expression or a grammar."""

MAX_TEMPLATE_VARIABLES_CHARACTERS = 1 << 16
"""Length of `chat_template_kwargs` as JSON."""
