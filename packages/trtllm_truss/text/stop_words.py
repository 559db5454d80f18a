"""Stop words, found in text that arrives in pieces.

All words are followed at once (Aho and Corasick, "Efficient string matching", CACM 18(6), 1975):
a state of the automaton is the longest end of the text that can still become a stop word, which is
just what has to be held back. The work is linear in the text, however many words there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopWordMatcher:
    """Ends one text before its first stop word.

    The reference is a search in the whole text: the cut is at the smallest `text.find(word)` over
    all words. A word that began later but is complete earlier therefore waits for one that began
    before it and may still be completed ("c" for "bcd"); it decides as soon as that one fails, or
    at the end.

    Attributes:
        matched: whether a stop word has ended the text; final after `flush`.

    Args:
        stop_words: any number of words; the order does not matter.

    Raises:
        ValueError: a word is empty.
    """

    def __init__(self, stop_words: Sequence[str]) -> None:
        self._words = _Automaton(stop_words)
        self._node = 0
        # The text that is not shown yet: always as long as the node is deep.
        self._held = ""
        # Where in the held text it ends, if no word that began earlier is completed.
        self._cut: int | None = None
        self.matched = False

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece of text.

        Args:
            text: any piece, cut anywhere.

        Returns:
            The text that is safe to show, and whether a stop word has ended it. From then on
            nothing more is shown.
        """
        if self.matched:
            return "", True
        words = self._words
        if not self._held and words.first_characters.isdisjoint(text):
            return text, False
        held = self._held + text
        node, cut = self._node, self._cut
        for end, character in enumerate(text, start=len(self._held) + 1):
            node = words.step(node, character)
            length = words.complete[node]
            if length and (cut is None or end - length < cut):
                cut = end - length
            if cut is not None and end - words.depth[node] >= cut:
                self.matched, self._held = True, ""
                return held[:cut], True
        safe = len(held) - words.depth[node]
        self._node, self._held = node, held[safe:]
        self._cut = None if cut is None else cut - safe
        return held[:safe], False

    def flush(self) -> str:
        """End the text.

        Returns:
            What was held back and is not part of a stop word.
        """
        held, self._held = self._held, ""
        if self._cut is None or self.matched:
            return held
        self.matched = True
        return held[: self._cut]


class _Automaton:
    """The words as a trie, whose nodes know where to go on when the next character does not fit.

    Attributes:
        first_characters: those with which a word can begin.
        depth: by node, the length of what it stands for.
        complete: by node, the length of the longest word that ends there; 0 if none does.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._children: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self.depth = [0]
        self.complete = [0]
        for word in words:
            self._add(word)
        self._link()
        self.first_characters = frozenset(self._children[0])

    def step(self, node: int, character: str) -> int:
        """The node for the longest end of the text, once a character is added to it."""
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
