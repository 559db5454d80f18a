"""Guided decoding and log probabilities."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from trtllm_workbench.selftest.bench.bench import PROMPTS, Bench, expect
from trtllm_workbench.selftest.bench.results import CannotRun, FellShort, Held

_COMPLETIONS = "/v1/completions"
_ROUNDING = 1e-3
_LITERAL = "naïve 漢字 😀"
"""Characters of one to four bytes, which most tokenizers split."""

_SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


def log_probabilities(bench: Bench) -> Held:
    """Compare tokens and log probabilities with the answer."""
    body = {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0, "logprobs": 0}
    answer = expect(bench.api.post(_COMPLETIONS, body)).json()
    choice, count = answer["choices"][0], answer["usage"]["completion_tokens"]
    found = choice["logprobs"]
    values = found["token_logprobs"]
    if len(values) != count or len(found["tokens"]) != count:
        raise FellShort(
            f"{len(values)} log probabilities of {len(found['tokens'])} tokens came with an "
            f"answer of {count} tokens"
        )
    if wrong := [v for v in values if v is None or not math.isfinite(v) or v > _ROUNDING]:
        raise FellShort(f"log probabilities must be at most 0; found {wrong}")
    if (joined := "".join(found["tokens"])) != choice["text"]:
        raise FellShort(f"the tokens join to {joined!r}, the text is {choice['text']!r}")
    mean = sum(values) / max(1, len(values))
    return Held(f"one for each of {count} tokens, {mean:.2f} on average", {"mean": round(mean, 3)})


def guided_decoding(bench: Bench) -> Held:
    """Constrain answers by a regular expression and by a schema."""
    chosen, reason = _guided(bench, {"type": "regex", "regex": "(yes|no)"})
    if chosen not in ("yes", "no"):
        raise FellShort(f"the regular expression (yes|no) gave {chosen!r} ({reason})")
    literal, reason = _guided(bench, {"type": "regex", "regex": _LITERAL})
    if literal != _LITERAL:
        raise FellShort(f"the regular expression {_LITERAL} gave {literal!r} ({reason})")
    schema = {"type": "json_schema", "json_schema": {"name": "colour", "schema": _SCHEMA}}
    text, reason = _guided(bench, schema)
    try:
        value = json.loads(text)
        if reason == "stop" and value.get("colour") not in ("red", "green"):
            raise FellShort(f"a schema gave {text!r}, which does not match it")
    except ValueError:
        if reason == "stop":
            raise FellShort(f"a schema gave {text!r}, which is not JSON") from None
    return Held(f"{chosen!r} by a regular expression, {text!r} by a schema")


def _guided(bench: Bench, guide: Mapping[str, object]) -> tuple[str, str]:
    """Return the text of a guided answer and its finish reason."""
    body = {"prompt": PROMPTS[0], "max_tokens": 48, "temperature": 0, "response_format": guide}
    reply = bench.api.post(_COMPLETIONS, body)
    if reply.status == 400 and "runtime.guided_decoding_backend" in reply.text:
        raise CannotRun("guided decoding is off (runtime.guided_decoding_backend)")
    choice = expect(reply).json()["choices"][0]
    return choice["text"], choice["finish_reason"]
