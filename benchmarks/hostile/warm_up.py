"""Make a server allocate its caches, so that their growth is not counted."""

from __future__ import annotations

import json

from benchmarks.hostile.attacks import post
from benchmarks.hostile.body import CHAT
from benchmarks.servers.target import Target

_PROMPTS, _PROMPT_WORDS = 10, 500
"""Of 2,000 tokens each: more than the cache holds, and none takes minutes on a busy machine."""


def warm_up(target: Target, *, guides: bool) -> None:
    """Fill the KV cache, and start the process that checks guides.

    Raises:
        RuntimeError: a request failed.
    """
    bodies = [
        (target.path, {"prompt": f"{n} " * _PROMPT_WORDS, "max_tokens": 4})
        for n in range(100, 100 + _PROMPTS)
    ]
    if guides:
        regex = {"type": "regex", "regex": "a{1,3}"}
        messages = [{"role": "user", "content": "Hi"}]
        bodies.append((CHAT, {"messages": messages, "response_format": regex}))
    for route, body in bodies:
        reply = post(target.port, route, json.dumps(body).encode())
        if reply.status != 200:
            raise RuntimeError(f"a warm-up request got status {reply.status}: {reply.content!r}")
