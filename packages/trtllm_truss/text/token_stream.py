"""Text of one answer together with its tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from trtllm_truss.text.stop_words import StopWords
from trtllm_truss.text.text_stream import NO_STOP_WORDS, Piece, TextStream, TokenText
from trtllm_truss.text.tokenizer import TextTokenizer


class TokenStream(TextStream):
    """A `TextStream` that reports its tokens.

    Text is shown in whole tokens, so it can come later than from a `TextStream`. Tokens of a hidden
    stop word are not reported; one that it cuts is reported with the text that is left.

    Attributes:
        tokens: tokens of the text of the last `push` or `finish`, except for a character that the
            answer's last token begins and nothing completes.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        stop_words: StopWords = NO_STOP_WORDS,
        *,
        include_stop_word: bool = False,
        skip_special_tokens: bool = True,
        shown: Collection[str] = (),
    ) -> None:
        super().__init__(
            tokenizer,
            stop_words,
            include_stop_word=include_stop_word,
            skip_special_tokens=skip_special_tokens,
            shown=shown,
        )
        self._held: deque[TokenText] = deque()
        # Characters at the beginning of the held tokens' text that no stop word can take back.
        self._certain = 0

    def push(self, ids: Sequence[int]) -> Piece:
        """Take the next ids, and return the text of the tokens that are now certain."""
        used, stopped = 0, self.stopped
        for token_id in ids:
            if stopped:
                break
            text = self._decoding.push((token_id,))
            self._held.append(TokenText(token_id, text))
            certain, stopped = self._matcher.push(text)
            self._certain += len(certain)
            used += 1
        self._release(over=stopped)
        return Piece(self._text(), stopped, used)

    def finish(self) -> str:
        tail = self._decoding.flush()
        if self._held:
            token_id, text = self._held.pop()
            self._held.append(TokenText(token_id, text + tail))
        certain = self._matcher.push(tail)[0] + self._matcher.flush()
        self._certain += len(certain)
        self._release(over=True)
        return self._text() or certain

    def _text(self) -> str:
        return "".join([token.text for token in self.tokens])

    def _release(self, *, over: bool) -> None:
        """Report the tokens whose text is certain; once all is over, also the beginning of one.

        Tokens without text wait for the one that completes their character.
        """
        room, count = self._certain, 0
        for place, token in enumerate(self._held if room else (), start=1):
            if len(token.text) > room:
                break
            if token.text:
                room, count = room - len(token.text), place
        released = [self._held.popleft() for _ in range(count)]
        while over and room and self._held:
            token_id, text = self._held.popleft()
            released.append(TokenText(token_id, text[:room]))
            room -= len(released[-1].text)
        if over:
            released += () if self.stopped else self._held
            self._held.clear()
        self._certain = 0 if over else room
        self.tokens = tuple(released)
