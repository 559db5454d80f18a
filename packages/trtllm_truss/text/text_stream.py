"""Text of one answer: ids in, visible text out, up to a stop word.

All stop words are followed at once (Aho and Corasick, "Efficient string matching", CACM 18(6),
1975): a state of the automaton is the longest suffix of the text that is a prefix of a stop word,
which is exactly the text to hold back. The work is linear in the text, for any number of words.

The engine gets the ids of a stop word as a hint, and may stop before the text is searched. An id
list must therefore imply the stop word after any other tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.tokenizer import TextTokenizer


class StopWordMatcher:
    """Ends one text before its first stop word, or after it.

    The reference is a search in the whole text: the cut is at the smallest `text.find(word)` over
    all words. A word that began later but is complete earlier therefore waits for one that began
    before it and may still be completed ("c" for "bcd"); it decides as soon as that one fails, or
    at the end. Of words that begin at the same place the shortest decides.

    Args:
        stop_words: the words, shared by all texts that they end.
        shown: include the stop word that ends the text.

    Attributes:
        word: the stop word that has ended the text; final after `flush`.
    """

    def __init__(self, stop_words: StopWords, *, shown: bool = False) -> None:
        self._words = stop_words
        self._shown = shown
        self._node = 0
        # The text that is not shown yet: always as long as the node is deep.
        self._held = ""
        # The word in the held text that ends it, if no word that began earlier is completed.
        self._found: _Found | None = None
        self.word: str | None = None

    @property
    def matched(self) -> bool:
        return self.word is not None

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next part of the text, cut anywhere.

        Returns:
            The text that is safe to show, and True if a stop word has ended it. Later calls return
            no text.
        """
        if self.word is not None:
            return "", True
        words = self._words
        if not self._held and words.first_characters.isdisjoint(text):
            return text, False
        held = self._held + text
        node, found = self._node, self._found
        for end, character in enumerate(text, start=len(self._held) + 1):
            node = words.step(node, character)
            length = words.complete[node]
            if length and (found is None or end - length < found.start):
                found = _Found(end - length, end)
            if found is not None and end - words.depth[node] >= found.start:
                self._held = ""
                return self._ended(held, found), True
        safe = len(held) - words.depth[node]
        self._node, self._held = node, held[safe:]
        self._found = None if found is None else _Found(found.start - safe, found.end - safe)
        return held[:safe], False

    def flush(self) -> str:
        """End the text, and return the held-back text to show."""
        held, self._held = self._held, ""
        if self._found is None or self.word is not None:
            return held
        return self._ended(held, self._found)

    def _ended(self, text: str, found: _Found) -> str:
        self.word = text[found.start : found.end]
        return text[: found.end if self._shown else found.start]


class _Found(NamedTuple):
    start: int
    end: int


class StopWords:
    """The words as a trie, whose nodes know where to go on when the next character does not fit.

    Building it takes a dictionary for each character of the words.

    Args:
        words: any number of words; the order does not matter.

    Raises:
        ValueError: a word is empty.

    Attributes:
        first_characters: those with which a word can begin.
        depth: by node, the length of what it stands for.
        complete: by node, the length of the longest word that ends there; 0 if none does.
    """

    def __init__(self, words: Sequence[str] = ()) -> None:
        self._children: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self.depth = [0]
        self.complete = [0]
        for word in words:
            self._add(word)
        self._link()
        self.first_characters = frozenset(self._children[0])

    def __bool__(self) -> bool:
        return len(self._children) > 1

    def step(self, node: int, character: str) -> int:
        """Return the node of the longest such suffix after adding a character."""
        children = self._children[node]
        while node and character not in children:
            node = self._fallback[node]
            children = self._children[node]
        return children.get(character, 0)

    def _add(self, word: str) -> None:
        if not word:
            raise ValueError("a stop word is empty")
        node = 0
        for character in word:
            if character not in self._children[node]:
                self._children[node][character] = len(self._children)
                self._children.append({})
                self._fallback.append(0)
                self.depth.append(self.depth[node] + 1)
                self.complete.append(0)
            node = self._children[node][character]
        self.complete[node] = len(word)

    def _link(self) -> None:
        """Set every node's fallback, shallow ones first: a fallback is always shallower."""
        queue = deque(self._children[0].values())
        while queue:
            node = queue.popleft()
            self.complete[node] = self.complete[node] or self.complete[self._fallback[node]]
            for character, child in self._children[node].items():
                self._fallback[child] = self.step(self._fallback[node], character)
                queue.append(child)


_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_REMEMBERED_WORDS = 1024


def encode_word(tokenizer: TextTokenizer, word: str) -> list[int]:
    """Return the ids of a word; none for invalid Unicode, which no text can hold."""
    try:
        return tokenizer.encode(word, add_special_tokens=False)
    except InvalidRequest:
        return []


def implies_word(tokenizer: TextTokenizer, ids: Sequence[int], word: str) -> bool:
    """Return True if every text that contains these ids contains the word."""
    if _REPLACEMENT in word:  # could come from bytes that an earlier token would complete
        return False
    # Twice: a token at the beginning of a text can differ from the same one further on.
    # Never flushed: text that only the end makes certain is not certain.
    decoding = tokenizer.start_decoding()
    return all(word in decoding.push(ids) for _ in range(2))


class StopWordIds:
    """Stop words as single ids of one tokenizer; remembers the most recent words.

    Words of several tokens have no id here: the engine would also match a list that begins in the
    prompt.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self.hint = lru_cache(_REMEMBERED_WORDS)(self._hint)
        self.special = lru_cache(_REMEMBERED_WORDS)(self._special)

    def _hint(self, word: str) -> int | None:
        ids = encode_word(self._tokenizer, word)
        return ids[0] if len(ids) == 1 and implies_word(self._tokenizer, ids, word) else None

    def _special(self, word: str) -> int | None:
        """Return the id of the special token spelled like the word; it never shows in a text."""
        ids = encode_word(self._tokenizer, word)
        return ids[0] if len(ids) == 1 and ids[0] in self._tokenizer.special_ids else None


NO_STOP_WORDS = StopWords()


class Piece(NamedTuple):
    """The next part of an answer.

    Attributes:
        text: visible text; may be empty.
        stopped: True if a stop word has ended the answer: nothing follows.
        used: ids consumed; those after the one that completed a stop word are not.
    """

    text: str
    stopped: bool
    used: int


class TokenText(NamedTuple):
    """A token and the text that it added; empty where a later one completes a character."""

    id: int
    text: str


class TextStream:
    """Text of one answer, from its first id to its end.

    The joined texts are the decoding of all ids, cut before the first stop word, or after it. A
    stop word at the very end may be decided only by `finish`; check `stop_word` afterwards.

    Args:
        include_stop_word: include the one that ends it.
        shown: special tokens not to omit.

    Attributes:
        tokens: tokens of the text of the last `push` or `finish`; filled by
            `TokenStream` only.
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
        """Take the next generated ids, and return the text that is now certain."""
        if self._is_watched:
            return self._push_watched(ids)
        return Piece(self._decoding.push(ids), False, len(ids))

    def finish(self) -> str:
        """End the answer, and return the text that was held back."""
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
