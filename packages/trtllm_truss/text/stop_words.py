"""Cut a text that arrives in pieces at its first stop word.

All stop words are tracked at once (Aho and Corasick, "Efficient string matching", CACM 18(6),
1975): a state of the automaton is the longest suffix of the text that is a prefix of a stop word,
which is exactly the text to hold back. The cost is linear in the text, for any number of words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class StopWordMatcher:
    """Cuts one text before or after its first stop word.

    The reference is a search in the whole text: the cut is at the smallest `text.find(word)` over
    all words. A word that starts later but is complete earlier therefore waits for one that started
    before it and may still be completed ("c" for "bcd"); it decides as soon as that one fails, or
    at the end. Of words that start at the same place, the shortest decides.

    Args:
        stop_words: the words, shared by all texts.
        shown: include the stop word in the text.

    Attributes:
        word: the stop word that was found; final after `flush`.
    """

    def __init__(self, stop_words: StopWords, *, shown: bool = False) -> None:
        self._words = stop_words
        self._shown = shown
        self._node = 0
        # The text that is not shown yet: always as long as the node is deep.
        self._held = ""
        # The word in the held text that finishes it, if no word that started earlier is completed.
        self._found: _Found | None = None
        self.word: str | None = None

    @property
    def matched(self) -> bool:
        return self.word is not None

    def push(self, text: str) -> tuple[str, bool]:
        """Add the next part of the text, split anywhere.

        Returns:
            The text that is safe to show, and True if a stop word was found. Later calls return
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
        """Finish the text, and return the text that was held back."""
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
    """The words as a trie; each node has a fallback for when the next character does not match.

    Building it takes a dictionary per character of the words.

    Args:
        words: any number of words, in any order.

    Raises:
        ValueError: a word is empty.

    Attributes:
        first_characters: characters with which a word can start.
        depth: by node, the length of its prefix.
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
        """Return the node of the longest matching suffix after adding a character."""
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
        """Set every node's fallback, shallow nodes first: a fallback is always shallower."""
        queue = deque(self._children[0].values())
        while queue:
            node = queue.popleft()
            self.complete[node] = self.complete[node] or self.complete[self._fallback[node]]
            for character, child in self._children[node].items():
                self._fallback[child] = self.step(self._fallback[node], character)
                queue.append(child)


NO_STOP_WORDS = StopWords()
