"""Turn the ids of one choice into visible text, up to a stop word."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from trtllm_truss.text.stop_words import NO_STOP_WORDS, StopWordMatcher, StopWords
from trtllm_truss.text.tokenizer import TextTokenizer


class Piece(NamedTuple):
    """The next part of a choice.

    Attributes:
        text: visible text; may be empty.
        stopped: a stop word has finished the choice; nothing follows.
        used: number of ids consumed; ids after the one that completed a stop word are not.
    """

    text: str
    stopped: bool
    used: int


class TokenText(NamedTuple):
    """A token and the text that it added; empty if a later token completes its character."""

    id: int
    text: str


class TextStream:
    """Text of one choice, from its first id to its end.

    The joined texts are the decoding of all ids, cut before or after the first stop word. A stop
    word at the very end may be found only by `finish`; check `stop_word` afterwards.

    Args:
        include_stop_word: include the stop word in the text.
        shown: special tokens to include.

    Attributes:
        tokens: tokens of the text from the last `push` or `finish`; filled by `TokenStream` only.
    """

    tokens: tuple[TokenText, ...] = ()

    def __init__(
        self,
        tokenizer: TextTokenizer,
        stop_words: StopWords = NO_STOP_WORDS,
        *,
        include_stop_word: bool = False,
        skip_special_tokens: bool = True,
        shown: Collection[str] = (),
    ) -> None:
        self._decoding = tokenizer.start_decoding(skip_special_tokens, shown)
        self._matcher = StopWordMatcher(stop_words, shown=include_stop_word)
        self._is_watched = bool(stop_words)

    @property
    def stopped(self) -> bool:
        return self._matcher.matched

    @property
    def stop_word(self) -> str | None:
        return self._matcher.word

    def push(self, ids: Sequence[int]) -> Piece:
        """Add the next generated ids, and return the text that is now certain."""
        if self._is_watched:
            return self._push_watched(ids)
        return Piece(self._decoding.push(ids), False, len(ids))

    def finish(self) -> str:
        """Finish the choice, and return the text that was held back."""
        text, stopped = self._matcher.push(self._decoding.flush())
        return text if stopped else text + self._matcher.flush()

    def _push_watched(self, ids: Sequence[int]) -> Piece:
        """Push one id at a time, to find the one that completes the stop word."""
        shown, stopped = [], self._matcher.matched
        used = 0
        for token_id in ids:
            if stopped:
                break
            text, stopped = self._matcher.push(self._decoding.push((token_id,)))
            shown.append(text)
            used += 1
        return Piece("".join(shown), stopped, used)


class TokenStream(TextStream):
    """A `TextStream` that reports its tokens.

    Text is returned in whole tokens, so it can be later than from a `TextStream`. Tokens of a
    hidden stop word are not reported; a token that it cuts is reported with the remaining text.

    Attributes:
        tokens: tokens of the text from the last `push` or `finish`, except a character that the
            last token starts and nothing completes.
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
        # Number of characters at the start of the held tokens' text that no stop word can remove.
        self._certain = 0

    def push(self, ids: Sequence[int]) -> Piece:
        """Add the next ids, and return the text of the tokens that are now certain."""
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
        """Report the tokens whose text is certain; at the end, also an incomplete one.

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
