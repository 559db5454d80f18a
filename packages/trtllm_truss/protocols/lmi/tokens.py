"""Tokens and reasons, as LMI and TGI write them."""

from __future__ import annotations

from typing import Any

from trtllm_truss.requests import FinishReason, GenerationEnd, Token

NO_TOKEN = Token(id=-1, text="", log_prob=-1, special=True)
"""What LMI puts where a line must have a token and there is none."""


def token_object(token: Token, *, tgi: bool) -> dict[str, Any]:
    """One token. LMI tells of special ones only where a token is one."""
    if tgi:
        return {
            "id": token.id,
            "text": token.text,
            "logprob": token.log_prob,
            "special": token.special,
        }
    plain: dict[str, Any] = {"id": token.id, "text": token.text, "log_prob": token.log_prob}
    return {**plain, "special_token": True} if token.special else plain


def finish_reason(finish: GenerationEnd) -> str:
    """`length`, `eos_token` or `stop_sequence`."""
    if finish.reason is FinishReason.LENGTH:
        return "length"
    return "eos_token" if finish.stop_word is None else "stop_sequence"
