"""Text of each token, looked up once and shared by all texts."""

from __future__ import annotations

from enum import Enum

from tokenizers import Tokenizer

from trtllm_truss.literals import token_bytes
from trtllm_truss.text.tokenizer_parts import panics_as_errors


class TokenKind(Enum):
    DROPPED = "hidden or unknown: the decoder never sees it"
    BYTE = "one byte of a run"


class ByteTable(dict[int, bytes]):
    """The bytes of each visible token, filled as tokens occur."""

    def __init__(self, backend: Tokenizer, hidden: frozenset[str]) -> None:
        super().__init__()
        self._backend = backend
        self._hidden = hidden

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id)
        if token is None or token in self._hidden:
            return b""
        self[token_id] = value = token_bytes(token)
        return value


class TextTable(dict[int, str | TokenKind]):
    """The text of each visible token after another one, filled as tokens occur."""

    def __init__(
        self, backend: Tokenizer, hidden: frozenset[str], anchor: int, has_bytes: bool
    ) -> None:
        super().__init__()
        self._backend = backend
        self._hidden = hidden
        self._has_bytes = has_bytes
        self.anchor = anchor
        self.anchor_text = backend.decode([anchor])

    def __missing__(self, token_id: int) -> str | TokenKind:
        token = self._backend.id_to_token(token_id)
        if token is None or token in self._hidden:
            return TokenKind.DROPPED
        # Wider than the decoder's own rule: to hold back too much is late, never wrong.
        is_byte = self._has_bytes and "<0x" in token
        value: str | TokenKind = TokenKind.BYTE if is_byte else self._after_anchor([token_id])
        self[token_id] = value
        return value

    @panics_as_errors()
    def text_after(self, context: list[int], context_text: str, ids: list[int]) -> str:
        """Return the text of ids that follow others with known text."""
        whole = self._backend.decode([*context, *ids], skip_special_tokens=bool(self._hidden))
        return whole[len(context_text) :]

    def is_empty(self, ids: list[int]) -> bool:
        """Return True if ids add nothing to a text that has begun."""
        return not self._after_anchor(ids)

    def _after_anchor(self, ids: list[int]) -> str:
        return self.text_after([self.anchor], self.anchor_text, ids)


def special_tokens(backend: Tokenizer) -> frozenset[str]:
    """Return the contents that never show in decoded text."""
    added = backend.get_added_tokens_decoder().values()
    return frozenset(token.content for token in added if token.special)
