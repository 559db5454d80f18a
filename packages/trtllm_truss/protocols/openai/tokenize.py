"""`/tokenize` and `/detokenize`, with the bodies and answers of vLLM's.

Source: https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html#tokenizer-api.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trtllm_truss.errors import InvalidRequest, TrussError
from trtllm_truss.protocols.base import JSON_MEDIA_TYPE, Call, WholeWriter
from trtllm_truss.protocols.openai.adapter import OpenAIAdapter
from trtllm_truss.protocols.openai.answers import error_body
from trtllm_truss.validation import shown

_STRINGS = "return_token_strs"


class _Tokens(WholeWriter):
    def __init__(self, context_tokens: int, *, with_texts: bool) -> None:
        super().__init__()
        self._context_tokens = context_tokens
        self._with_texts = with_texts

    def body(self) -> Any:
        tokens = self.ended(0)[1].prompt
        return {
            "count": len(tokens),
            "max_model_len": self._context_tokens,
            "tokens": [token.id for token in tokens],
            "token_strs": [token.text for token in tokens] if self._with_texts else None,
        }


class _Text(WholeWriter):
    def body(self) -> Any:
        return {"prompt": self.ended(0)[0].text}


@dataclass(frozen=True, slots=True)
class TokenizeAdapter:
    """Returns the token ids of a text or of a conversation.

    Attributes:
        chat: reads bodies with `messages`.
        completion: reads bodies with `prompt`.
        context_tokens: the engine's limit of prompt and answer.
    """

    chat: OpenAIAdapter
    completion: OpenAIAdapter
    context_tokens: int
    name: str = "tokenize"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        adapter = self.chat if "messages" in body else self.completion
        fields = {name: value for name, value in body.items() if name != _STRINGS}
        with_texts = body.get(_STRINGS) or False
        if not isinstance(with_texts, bool):
            raise InvalidRequest(
                f"{_STRINGS} is {shown(with_texts)}; it must be true or false.", param=_STRINGS
            )
        request, *others = adapter.parse(fields, {}).requests
        if others:
            raise InvalidRequest(
                f"prompt holds {1 + len(others)} prompts; send one.", param="prompt"
            )
        request = replace(request, max_tokens=0, guide=None, echo=False, prompt_details=True)
        writer = _Tokens(self.context_tokens, with_texts=with_texts)
        return Call([request], writer, JSON_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> Any:
        return error_body(error)


@dataclass(frozen=True, slots=True)
class DetokenizeAdapter:
    """Returns the text of token ids, special tokens included.

    Attributes:
        completion: reads them as a prompt.
    """

    completion: OpenAIAdapter
    name: str = "detokenize"

    def read(self, body: Mapping[str, Any], accept: str, call_id: str) -> Call:
        unknown = body.keys() - {"model", "tokens"}
        if unknown or not isinstance(tokens := body.get("tokens"), list):
            field = min(unknown, default="tokens")
            raise InvalidRequest(
                f"{shown(field)} is {shown(body.get(field))}; send tokens, a list of ids.",
                param="tokens",
            )
        known = {"prompt": tokens, "echo": True, "skip_special_tokens": False}
        if "model" in body:
            known["model"] = body["model"]
        if not tokens:
            raise InvalidRequest("tokens is empty; send at least one id.", param="tokens")
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in tokens):
            raise InvalidRequest(
                "tokens holds other values than ids; send integers.", param="tokens"
            )
        (request,) = self.completion.parse(known, {}).requests
        request = replace(request, max_tokens=0, names={**request.names, "prompt_ids": "tokens"})
        return Call([request], _Text(), JSON_MEDIA_TYPE)

    def error_body(self, error: TrussError) -> Any:
        return error_body(error)
