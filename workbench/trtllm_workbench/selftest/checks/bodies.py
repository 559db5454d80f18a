"""Bodies that must be refused, each with the name of the field at fault."""

from __future__ import annotations

from typing import Any

from trtllm_workbench.selftest.bench.bench import INVOCATIONS, PROMPTS, Bench
from trtllm_workbench.selftest.bench.calls import PREDICT
from trtllm_workbench.selftest.bench.results import FellShort, Held

_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_RESPONSES, _MESSAGES = "/v1/responses", "/v1/messages"
_PROMPT = {"prompt": PROMPTS[0]}
_USER = [{"role": "user", "content": "Hi"}]
_LARGEST_BYTES = 32 << 20

BAD_BODIES: tuple[tuple[str, Any, str], ...] = (
    (PREDICT, b'{"prompt": ', "JSON"),
    (PREDICT, b"[1, 2]", "object"),
    (PREDICT, {}, "prompt"),
    (PREDICT, {**_PROMPT, "max_tokens": -1}, "max_tokens"),
    (PREDICT, {**_PROMPT, "max_token": 5}, "max_token"),
    (PREDICT, {**_PROMPT, "temperature": "hot"}, "temperature"),
    (PREDICT, {**_PROMPT, "top_p": 3}, "top_p"),
    (PREDICT, {**_PROMPT, "stop_words": 7}, "stop_words"),
    (PREDICT, {**_PROMPT, "seed": -1}, "seed"),
    (PREDICT, {**_PROMPT, "min_tokens": 9, "max_tokens": 4}, "min_tokens"),
    (_COMPLETIONS, {**_PROMPT, "n": 0}, "n"),
    (_COMPLETIONS, {"prompt": {"a": 1}}, "prompt"),
    (_CHAT, {}, "messages"),
    (_CHAT, {"messages": "Hi"}, "messages"),
    (_CHAT, {"messages": [{"content": "Hi"}]}, "role"),
    (_CHAT, {"messages": _USER, "max_tokens": 0}, "max_tokens"),
    (_CHAT, {"messages": _USER, "response_format": {"type": "poem"}}, "response_format"),
    (_RESPONSES, {}, "input"),
    (_RESPONSES, {"input": "Hi", "max_output_tokens": 0}, "max_output_tokens"),
    (_MESSAGES, {"model": "any", "messages": _USER}, "max_tokens"),
    (_MESSAGES, {"model": "any", "messages": [], "max_tokens": 4}, "messages"),
    (INVOCATIONS, {"inputs": "Hi", "parameters": {"max_new_tokens": 0}}, "max_new_tokens"),
    (INVOCATIONS, {"inputs": "Hi", "parameters": {"topk": 1}}, "topk"),
)
"""Route, body, and a word that the message must hold."""


def bad_bodies(bench: Bench) -> Held:
    """Send all of them, one that is too long and one that is too large."""
    cases = [*BAD_BODIES, (PREDICT, _too_long(bench), "context")]
    for path, body, word in cases:
        reply = bench.api.post(path, body)
        if not 400 <= reply.status < 500 or word not in reply.complaint:
            shown = str(body)[:80]
            raise FellShort(
                f"{path} answered {shown} with {reply.complaint}; expected 4xx and {word!r}"
            )
    refused = len(cases)
    limit = bench.settings.serving.max_body_bytes
    if limit < _LARGEST_BYTES:
        reply = bench.api.post(PREDICT, b" " * (limit + 1))
        if reply.status != 413:
            raise FellShort(f"a body of {limit + 1} bytes got {reply.complaint}; expected HTTP 413")
        refused += 1
    bench.greedy(max_tokens=2)
    return Held(f"{refused} bodies refused by field, the next request answered")


def _too_long(bench: Bench) -> dict[str, Any]:
    text = " ".join([PROMPTS[0]] * (bench.context_tokens // len(bench.prompt_ids) + 2))
    return {"prompt": text, "max_tokens": 4}
