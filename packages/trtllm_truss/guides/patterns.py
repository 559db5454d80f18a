r"""Regular expressions in JSON schemas, and the grammars of matching JSON strings.

A value may have to match several expressions, forbidden names and a length at once. They run side
by side as one automaton over classes of characters, which is minimized and written as a grammar
with a rule for each state. An expression for the whole text that needs no escapes is written
unchanged.

Expressions have the meaning shared by ECMA 262 and Python's `re`: characters that a class contains
in only one of the two (`\d` beyond ASCII, `.` and U+2028) are not generated. Constructs on which
they disagree, or that no automaton supports (back-references, lookaround, `\b`, `\p`), are refused.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

Chars: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of code points, both ends included, sorted and disjoint."""

MAX_STATES = 400
_MAX_PREFIXES = 16
"""Maximum number of name prefixes to distinguish.

Each is a state, and costs XGrammar 0.1.32 as much compile time as a string of any text: no grammar
that distinguishes names has fewer.
"""

_MAX_PARTS = 20_000
_LAST = 0x10FFFF
_ALL: Chars = ((0, 0xD7FF), (0xE000, _LAST))


class Unsupported(ValueError):
    """The expression contains something unsupported; the message names it."""


class TooManyStates(ValueError):
    """The automaton is too large."""


def chars_of(*ranges: tuple[int, int]) -> Chars:
    """Return a set of characters, without surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def negate(chars: Chars) -> Chars:
    """Return all other characters."""
    found, low = [], 0
    for first, last in (*chars, (_LAST + 1, _LAST + 1)):
        for begin, end in _ALL:
            if max(low, begin) <= min(first - 1, end):
                found.append((max(low, begin), min(first - 1, end)))
        low = last + 1
    return tuple(found)


def unite(*sets: Chars) -> Chars:
    return chars_of(*(each for chars in sets for each in chars))


def intersect(one: Chars, other: Chars) -> Chars:
    return negate(unite(negate(one), negate(other)))


def _texts(text: str) -> Chars:
    return chars_of(*((ord(each), ord(each)) for each in text))


class _Class(NamedTuple):
    """A class of characters.

    Attributes:
        sure: characters that it contains in both languages.
        possible: characters that it contains in at least one of them.
    """

    sure: Chars
    possible: Chars


_DIGIT = chars_of((0x30, 0x39))
_WORD = chars_of((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
# Blocks without digits of category Nd, and blocks of punctuation and arrows only.
_NO_DIGITS = chars_of((0x80, 0x65F), (0x1C80, 0xA61F), (0xAC00, 0xD7FF), (0xE000, 0xFF0F))
_NO_WORDS = chars_of((0x2010, 0x2027), (0x2030, 0x203E), (0x2190, 0x21FF), (0x3001, 0x3003))
_SPACE = chars_of((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x2000, 0x200A))
_SPACE = unite(_SPACE, chars_of((0x1680, 0x1680), (0x2028, 0x2029), (0x202F, 0x202F)))
_SPACE = unite(_SPACE, chars_of((0x205F, 0x205F), (0x3000, 0x3000)))
_SPACES = unite(_SPACE, chars_of((0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF)))
_ASCII = chars_of((0, 0x7F))
_CLASSES = {
    "d": _Class(_DIGIT, unite(_DIGIT, negate(unite(_ASCII, _NO_DIGITS)))),
    "w": _Class(_WORD, unite(_WORD, negate(unite(_ASCII, _NO_WORDS)))),
    "s": _Class(_SPACE, _SPACES),
}
_CLASSES |= {
    name.upper(): _Class(negate(each.possible), negate(each.sure))
    for name, each in _CLASSES.items()
}
_DOT = negate(_texts("\n\r\u2028\u2029"))
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_QUANTIFIER = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_GROUP = re.compile(r"\?:|\?P?<[A-Za-z_]\w*>")
_CODE = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}|c([A-Za-z])")

Node: TypeAlias = "tuple[Any, ...]"
"""`("chars", sure, possible)` as in `_Class`, `("cat", nodes)`, `("alt", nodes)`,
`("repeat", node, least, most or None)`, `("begin",)` or `("end",)`."""


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse(self) -> Node:
        node = self._alternatives()
        if self._at < len(self._text):
            raise Unsupported("an unmatched )")
        return node

    def _next(self, length: int = 1) -> str:
        return self._text[self._at : self._at + length]

    def _alternatives(self) -> Node:
        found = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            found.append(self._sequence())
        return found[0] if len(found) == 1 else ("alt", found)

    def _sequence(self) -> Node:
        found = []
        while self._next() not in ("", "|", ")"):
            found.append(self._quantified(self._atom()))
        return found[0] if len(found) == 1 else ("cat", found)

    def _quantified(self, node: Node) -> Node:
        sign = self._next()
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign, (1, 1))
        length = int(sign in ("*", "+", "?") and bool(sign))
        if sign == "{" and (match := _QUANTIFIER.match(self._text, self._at)):
            length = len(match.group())
            least = _number(match.group(1))
            most = _number(match.group(3)) if match.group(3) else None if match.group(2) else least
            if most is not None and most < least:
                raise Unsupported(match.group())
        if not length:
            return node
        if node[0] in ("begin", "end"):
            raise Unsupported("a repeated anchor")
        self._at += length
        if self._next() == "?":
            self._at += 1
        elif self._next() in ("*", "+") or _QUANTIFIER.match(self._text, self._at):
            raise Unsupported("a repeated repetition")
        return ("repeat", node, least, most)

    def _atom(self) -> Node:
        character = self._next()
        self._at += 1
        if character == "^":
            return ("begin",)
        if character == "$":
            return ("end",)
        if character == ".":
            return ("chars", _DOT, negate(_texts("\n")))
        if character == "(":
            return self._group()
        if character == "[":
            return ("chars", *self._brackets())
        if character == "\\":
            return ("chars", *self._escape(in_brackets=False))
        if character in "*+?":
            raise Unsupported(f"{character} without anything to repeat")
        return ("chars", _literal(character), _literal(character))

    def _group(self) -> Node:
        if self._next() == "?":
            match = _GROUP.match(self._text, self._at)
            if match is None:
                raise Unsupported(f"({self._next(3 if self._next(2) == '?<' else 2)}")
            self._at = match.end()
        node = self._alternatives()
        if self._next() != ")":
            raise Unsupported("an unclosed (")
        self._at += 1
        return node

    def _brackets(self) -> _Class:
        is_negated = self._next() == "^"
        self._at += is_negated
        if self._next() == "]":
            raise Unsupported("[] or [^]")
        sure, possible = [], []
        while self._next() != "]":
            first = self._member()
            if self._next() == "-" and self._next(2) not in ("-", "-]"):
                self._at += 1
                first = _range(first, self._member())
            sure.append(first.sure)
            possible.append(first.possible)
        self._at += 1
        whole = _Class(unite(*sure), unite(*possible))
        return _Class(negate(whole.possible), negate(whole.sure)) if is_negated else whole

    def _member(self) -> _Class:
        character = self._next()
        if not character:
            raise Unsupported("an unclosed [")
        if character == "[" and self._next(2) in ("[:", "[=", "[."):
            raise Unsupported(self._next(2))
        self._at += 1
        if character == "\\":
            return self._escape(in_brackets=True)
        return _Class(_literal(character), _literal(character))

    def _escape(self, *, in_brackets: bool) -> _Class:
        character = self._next()
        if match := _CODE.match(self._text, self._at):
            self._at = match.end()
            code = int(next(filter(None, match.groups()[:3]), "0"), 16)
            if match.group(4):
                code = ord(match.group(4)) % 32
            if 0xD800 <= code < 0xDC00 and self._next(2) == "\\u":
                low = _CODE.match(self._text, self._at + 1)
                if low and low.group(2) and 0xDC00 <= (second := int(low.group(2), 16)) < 0xE000:
                    self._at = low.end()
                    code = 0x10000 + ((code - 0xD800) << 10) + second - 0xDC00
            if code > _LAST or 0xD800 <= code < 0xE000:
                raise Unsupported(f"\\{match.group()}")
            return _Class(chars_of((code, code)), chars_of((code, code)))
        self._at += 1
        if character in _CLASSES:
            return _CLASSES[character]
        literal = _CONTROLS.get(character, "\b" if in_brackets and character == "b" else "")
        if character == "0" and self._next().isdigit():
            literal = ""
        if not literal and (not character or character.isalnum() or character == "_"):
            raise Unsupported(f"\\{character}")
        chars = _literal(literal or character)
        return _Class(chars, chars)


def node_of_texts(texts: Collection[str]) -> Node:
    """Return an expression that matches the given texts."""
    every = [("cat", [("chars", _texts(each), _texts(each)) for each in text]) for text in texts]
    return ("cat", [("begin",), ("alt", every), ("end",)])


def _number(digits: str) -> int:
    if len(digits) > 6:
        raise TooManyStates
    return int(digits)


def _literal(character: str) -> Chars:
    code = ord(character)
    if 0xD800 <= code < 0xE000:
        raise Unsupported("a lone surrogate")
    return ((code, code),)


def _range(first: _Class, last: _Class) -> _Class:
    ends = [*first.possible, *last.possible]
    if len(ends) != 2 or any(low != high for low, high in ends) or ends[0] > ends[1]:
        raise Unsupported("a range without two characters in order")
    chars = intersect(_ALL, ((ends[0][0], ends[1][0]),))
    return _Class(chars, chars)


ANY_TEXT: Node = ("cat", [("begin",), ("repeat", ("chars", _ALL, _ALL), 0, None), ("end",)])


def parse_pattern(text: str) -> Node:
    """Parse an expression.

    Raises:
        Unsupported: it contains something unsupported.
        TooManyStates: it repeats something more than a million times.
    """
    return _Parser(text).parse()


class _Part:
    """A condition on a text, which reads one class of characters after the other."""

    start: Any

    def sets(self) -> Iterator[Chars]:
        """Yield the sets of characters that it distinguishes."""
        yield from ()

    def prepare(self, members: Callable[[Chars], frozenset[int]]) -> None:
        """Receive the function from a set of characters to its classes."""

    def step(self, state: Any, kind: int) -> Any:
        """Return the state after a character; None if no further text can meet the condition."""
        raise NotImplementedError

    def accepts(self, state: Any) -> bool:
        raise NotImplementedError


class Matching(_Part):
    """The expression occurs in the text or, with `is_negated`, does not.

    States are sets of positions in the expression, and whether the text has begun.

    Args:
        is_possible: it matches in at least one of the two languages.
    """

    def __init__(
        self, node: Node, *, is_negated: bool = False, is_possible: bool | None = None
    ) -> None:
        self._is_possible = is_negated if is_possible is None else is_possible
        self._edges: list[list[tuple[Chars, int]]] = [[(_ALL, 0)]]
        self._jumps: list[list[tuple[str, int]]] = [[]]
        begin, end = self._place(), self._place()
        self._jumps[0].append(("", begin))
        self._end = end
        self._build(node, begin, end)
        self._is_negated = is_negated
        self.start = (self._closed({0}, {"begin"}), True)
        self._kinds: list[list[tuple[frozenset[int], int]]] = []

    def _place(self) -> int:
        if len(self._edges) > _MAX_PARTS:
            raise TooManyStates
        self._edges.append([])
        self._jumps.append([])
        return len(self._edges) - 1

    def _build(self, node: Node, begin: int, end: int) -> None:
        kind = node[0]
        if kind == "chars":
            self._edges[begin].append((node[2 if self._is_possible else 1], end))
        elif kind in ("begin", "end"):
            if kind == "end" and self._is_possible:  # Python's $ also matches before a line break
                after = self._place()
                self._edges[begin].append((_texts("\n"), after))
                self._jumps[after].append((kind, end))
            self._jumps[begin].append((kind, end))
        elif kind == "alt":
            for each in node[1]:
                self._build(each, begin, end)
        elif kind == "cat":
            for each in node[1]:
                after = self._place()
                self._build(each, begin, after)
                begin = after
            self._jumps[begin].append(("", end))
        else:
            self._build_repeat(node, begin, end)

    def _build_repeat(self, node: Node, begin: int, end: int) -> None:
        _, inner, least, most = node
        for number in range(least if most is None else most):
            if number >= least:
                self._jumps[begin].append(("", end))
            after = self._place()
            self._build(inner, begin, after)
            begin = after
        if most is None:
            loop, again = self._place(), self._place()
            self._jumps[begin].append(("", loop))
            self._build(inner, loop, again)
            self._jumps[again].append(("", loop))
            begin = loop
        self._jumps[begin].append(("", end))

    def _closed(self, places: Collection[int], allowed: Collection[str]) -> frozenset[int]:
        found, waiting = {*places}, [*places]
        while waiting:
            for kind, target in self._jumps[waiting.pop()]:
                if target not in found and (not kind or kind in allowed):
                    found.add(target)
                    waiting.append(target)
        return frozenset((self._end,)) if self._end in found else frozenset(found)

    def sets(self) -> Iterator[Chars]:
        for edges in self._edges:
            for chars, _ in edges:
                yield chars

    def prepare(self, members: Callable[[Chars], frozenset[int]]) -> None:
        self._kinds = [[(members(chars), to) for chars, to in edges] for edges in self._edges]

    def step(self, state: Any, kind: int) -> Any:
        places, _ = state
        if self._end in places:
            return None if self._is_negated else (places, False)
        reached = {to for place in places for kinds, to in self._kinds[place] if kind in kinds}
        return self._closed(reached, ()), False

    def accepts(self, state: Any) -> bool:
        places, is_start = state
        allowed = ("end", "begin") if is_start else ("end",)
        return (self._end in self._closed(places, allowed)) is not self._is_negated

    def finds(self, text: str) -> bool:
        """Return True if a text meets the condition."""
        places = self._closed({0}, {"begin"})
        for character in text:
            reached = {
                to
                for place in places
                for chars, to in self._edges[place]
                if _holds(chars, ord(character))
            }
            places = places if self._end in places else self._closed(reached, ())
        return self.accepts((places, not text))


def matches(node: Node, text: str, *, is_possible: bool = False) -> bool:
    """Return True if an expression matches a text somewhere.

    Args:
        is_possible: see `Matching`.

    Raises:
        TooManyStates: the expression is too large.
    """
    return Matching(node, is_possible=is_possible).finds(text)


class Lengths(_Part):
    """The text has so many characters."""

    start = 0

    def __init__(self, least: int, most: int | None) -> None:
        self._least, self._most = least, most

    def step(self, state: Any, kind: int) -> Any:
        if self._most is None:
            return min(state + 1, self._least)
        return state + 1 if state < self._most else None

    def accepts(self, state: Any) -> bool:
        return bool(state >= self._least)


class NoneOf(_Part):
    """The text is none of some names.

    Long names are distinguished by their first characters only: no text with these prefixes is
    allowed then.
    """

    start = ""

    def __init__(self, names: Collection[str]) -> None:
        depth = max(map(len, names), default=0)
        while depth > 1 and len(self._prefixes(names, depth)) > _MAX_PREFIXES:
            depth -= 1
        self._names = {name[:depth] for name in names}
        self._cut = {name[:depth] for name in names if len(name) > depth}
        self._known = self._prefixes(names, depth)
        self._characters: dict[int, str] = {}

    @staticmethod
    def _prefixes(names: Collection[str], depth: int) -> set[str]:
        return {name[:end] for name in names for end in range(min(depth, len(name)) + 1)}

    def sets(self) -> Iterator[Chars]:
        for character in sorted({each for name in self._names for each in name}):
            yield ((ord(character), ord(character)),)

    def prepare(self, members: Callable[[Chars], frozenset[int]]) -> None:
        for chars in self.sets():
            (kind,) = members(chars)
            self._characters[kind] = chr(chars[0][0])

    def step(self, state: Any, kind: int) -> Any:
        if state is True:
            return True
        after = state + self._characters.get(kind, "\0\0")
        if after in self._cut:
            return None
        return after if after in self._known else True

    def accepts(self, state: Any) -> bool:
        return state is True or state not in self._names


@dataclass(frozen=True)
class Automaton:
    """A minimal automaton.

    Attributes:
        moves: for each state, the characters that lead to others; state 0 is the first.
        accepting: states in which a text may end.
    """

    moves: list[dict[int, Chars]]
    accepting: frozenset[int]

    def accepts_all(self, state: int) -> bool:
        """Return True if any text may follow a state."""
        return state in self.accepting and self.moves[state] == {state: _ALL}


def run_together(parts: Sequence[_Part], max_states: int = MAX_STATES) -> Automaton | None:
    """Return the automaton of the texts that meet all conditions; None if there are none.

    Raises:
        TooManyStates: it needs more states.
    """
    kinds, members = _split(chars for part in parts for chars in part.sets())
    for part in parts:
        part.prepare(members)
    start = tuple(part.start for part in parts)
    numbers = {start: 0}
    states, moves = [start], []
    steps: list[dict[Any, list[Any]]] = [{} for _ in parts]  # of each state, by class
    for state in states:
        rows = []
        for part, each, known in zip(parts, state, steps, strict=True):
            if each not in known:
                known[each] = [part.step(each, kind) for kind in range(len(kinds))]
            rows.append(known[each])
        own = {}
        for kind, after in enumerate(zip(*rows, strict=True)):
            if None in after:
                continue
            if after not in numbers:
                if len(numbers) > 4 * max_states:
                    raise TooManyStates
                numbers[after] = len(states)
                states.append(after)
            own[kind] = numbers[after]
        moves.append(own)
    accepting = {
        number
        for number, state in enumerate(states)
        if all(part.accepts(each) for part, each in zip(parts, state, strict=True))
    }
    return _minimal(moves, accepting, kinds, max_states)


def _split(sets: Iterator[Chars]) -> tuple[list[Chars], Callable[[Chars], frozenset[int]]]:
    """Divide all characters into the classes that the sets distinguish."""
    known = list(dict.fromkeys(sets))
    edges = {0, 0xD800, 0xE000}
    for chars in known:
        for low, high in chars:
            edges |= {low, high + 1}
    begins = sorted(edge for edge in edges if edge <= _LAST)
    found: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for begin, after in zip(begins, [*begins[1:], _LAST + 1], strict=True):
        if 0xD800 <= begin < 0xE000:
            continue
        found.setdefault(tuple(_holds(chars, begin) for chars in known), []).append(
            (begin, after - 1)
        )
    places = {chars: place for place, chars in enumerate(known)}
    signatures = list(found)

    def members(chars: Chars) -> frozenset[int]:
        place = places[chars]
        return frozenset(kind for kind, each in enumerate(signatures) if each[place])

    return [chars_of(*ranges) for ranges in found.values()], members


def _holds(chars: Chars, code: int) -> bool:
    at = bisect_right(chars, (code, _LAST + 1)) - 1
    return at >= 0 and chars[at][1] >= code


def _minimal(
    moves: list[dict[int, int]], accepting: set[int], kinds: list[Chars], max_states: int
) -> Automaton | None:
    useful = _leading(moves, accepting)
    if 0 not in useful:
        return None
    own_moves = {
        state: {kind: to for kind, to in moves[state].items() if to in useful} for state in useful
    }
    group = {state: int(state in accepting) for state in useful}
    count = 0
    while count != (count := len(set(group.values()))):
        signatures: dict[Any, int] = {}
        group = {
            state: signatures.setdefault(
                (group[state], tuple((kind, group[to]) for kind, to in own_moves[state].items())),
                len(signatures),
            )
            for state in sorted(useful)
        }
    if count > max_states:
        raise TooManyStates
    numbers = {group[0]: 0}
    order = [0]
    found: list[dict[int, Chars]] = []
    for state in order:
        ranges: dict[int, list[Chars]] = {}
        for kind, to in own_moves[state].items():
            if group[to] not in numbers:
                numbers[group[to]] = len(order)
                order.append(to)
            ranges.setdefault(numbers[group[to]], []).append(kinds[kind])
        found.append({to: unite(*each) for to, each in ranges.items()})
    ends = frozenset(number for number, state in enumerate(order) if state in accepting)
    return Automaton(found, ends)


def _leading(moves: list[dict[int, int]], ends: set[int]) -> set[int]:
    """Return the states from which a text can end."""
    before: dict[int, set[int]] = {}
    for state, own in enumerate(moves):
        for target in own.values():
            before.setdefault(target, set()).add(state)
    found, waiting = set(ends), list(ends)
    while waiting:
        for state in before.get(waiting.pop(), set()) - found:
            found.add(state)
            waiting.append(state)
    return found


_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
_ANY_RAW = r"[^\0-\x1f\"\\]"
_RAW = negate(unite(chars_of((0, 0x1F)), _texts('"\\')))
_BEYOND_ASCII = negate(_ASCII)
_MAX_COUNT = 128
"""Largest count of a class with three-byte characters.

Above it, XGrammar 0.1.32 allows tokens such as `."` that end a repetition of such a class, followed
by something else; negated classes are not affected.
"""


def write_chars(chars: Chars) -> list[str]:
    """Return the alternatives for one character in a JSON string, as XGrammar's EBNF.

    Characters that JSON forbids in a string are written as the shortest escapes.
    """
    raw = intersect(chars, _RAW)
    # In this order: XGrammar reads a character from U+007F to U+00FF and a following digit as one.
    found = [f"[{''.join(_written(*each) for each in raw)}]"] if raw else []
    if _is_all_beyond_ascii(raw):
        others = intersect(negate(raw), ((0x20, 0x7F),))
        written = "".join(_written(*each) for each in others).replace('"', r"\"")
        found = [rf"[^\0-\x1f{written}]"]
    short = "".join(_SHORT[code] for code in _SHORT if _holds(chars, code))
    if short:
        escaped = short.replace("\\", r"\\").replace('"', r"\"")
        found.append(f'"\\\\" [{escaped}]')
    for high in (0, 1):
        digits = [
            f"{code % 16:x}"
            for code in range(16 * high, 16 * high + 16)
            if code not in _SHORT and _holds(chars, code)
        ]
        if digits:
            found.append(f'"\\\\u00{high}" [{"".join(digits)}]')
    return found


def _is_all_beyond_ascii(chars: Chars) -> bool:
    return intersect(chars, _BEYOND_ASCII) == _BEYOND_ASCII


def can_count(chars: Chars, least: int, most: int | None) -> bool:
    """Return True if a class can be written with a count; see `_MAX_COUNT`."""
    is_short = max(least, most or 0) <= _MAX_COUNT
    return is_short or chars[-1][1] < 0x800 or _is_all_beyond_ascii(chars)


def _written(low: int, high: int) -> str:
    first, last = _code(low), _code(high)
    return first if low == high else first + last if high == low + 1 else f"{first}-{last}"


def _code(code: int) -> str:
    if code > 0x7E:
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
    character = chr(code)
    return f"\\{character}" if character in r"\]^-" else character


def write_automaton(automaton: Automaton, name: str, any_rest: str, escape: str) -> dict[str, str]:
    """Return the rules of an automaton, ending with the quote; `name` is the first one.

    Each character has a rule, instead of a repetition of one rule: XGrammar knows in advance which
    multi-character tokens continue in a rule, but not which may follow it.

    Args:
        any_rest: rule for any characters up to the quote.
        escape: rule for any escape after its backslash.
    """
    if automaton.accepts_all(0):
        return {name: any_rest}
    names = {
        state: any_rest if automaton.accepts_all(state) else f"{name}_{state}"
        for state in range(len(automaton.moves))
    }
    names[0] = name
    rules = {}
    for state, moves in enumerate(automaton.moves):
        if names[state] == any_rest:
            continue
        choices = ['"\\""'] if state in automaton.accepting else []
        for to, chars in moves.items():
            every = [_ANY_RAW, f'"\\\\" {escape}'] if chars == _ALL else write_chars(chars)
            choices += [f"{each} {names[to]}" for each in every]
        rules[names[state]] = " | ".join(choices)
    return rules


def write_anchored(node: Node) -> str | None:
    """Return an expression for the whole text as EBNF; None if it is not one, or needs escapes."""
    return _write_choices(node, None)


def write_without_escapes(node: Node) -> str | None:
    """Return an expression as EBNF, for texts without escapes.

    Returns:
        None if it has anchors other than around alternatives, or needs escapes.
    """
    return _write_choices(node, f"{_ANY_RAW}*")


def _write_choices(node: Node, any_text: str | None) -> str | None:
    try:
        choices = node[1] if node[0] == "alt" else [node]
        return " | ".join(_write_choice(choice, any_text) for choice in choices)
    except Unsupported:
        return None


def _write_choice(node: Node, any_text: str | None) -> str:
    parts = list(node[1]) if node[0] == "cat" else [node]
    ends = parts[:1] == [("begin",)], parts[-1:] == [("end",)]
    if any_text is None and not all(ends):
        raise Unsupported("an open end")
    inner = parts[ends[0] : len(parts) - ends[1]]
    before, after = ("" if is_closed else any_text for is_closed in ends)
    written = [_write(part, drops_escapes=any_text is not None) for part in inner]
    return " ".join(filter(None, (before, *written, after))) or '""'


def _write(node: Node, *, drops_escapes: bool) -> str:
    """Return a part of an expression as EBNF.

    Args:
        drops_escapes: omit escapes if a class has other characters too.
    """
    kind = node[0]
    if kind == "chars":
        written = write_chars(node[1])
        if (
            not written
            or not written[0].startswith("[")
            or (len(written) > 1 and not drops_escapes)
        ):
            raise Unsupported("an empty class, or escapes")
        return written[0]
    if kind == "cat":
        inner = " ".join(_write(each, drops_escapes=drops_escapes) for each in node[1])
        return f"({inner})" if inner else '""'
    if kind == "alt":
        return f"({' | '.join(_write(each, drops_escapes=drops_escapes) for each in node[1])})"
    if kind == "repeat":
        _, inner, least, most = node
        if most == 0:
            return '""'
        if inner[0] == "chars" and inner[1] and not can_count(inner[1], least, most):
            raise Unsupported("a large count")
        count = f"{{{least},{'' if most is None else most}}}"
        signs = {(0, None): "*", (1, None): "+", (0, 1): "?"}
        one = _write(inner, drops_escapes=drops_escapes)
        one = one if inner[0] == "chars" else f"({one})"
        return one + signs.get((least, most), count)
    raise Unsupported("an anchor inside")


def repeated_class(node: Node) -> tuple[Chars, int, int | None] | None:
    """Return class and counts of an expression such as `^[a-z]{2,}$`; None for others."""
    parts = node[1] if node[0] == "cat" else []
    if len(parts) != 3 or parts[0] != ("begin",) or parts[2] != ("end",):
        return None
    inner = parts[1]
    if inner[0] == "repeat" and inner[1][0] == "chars":
        return inner[1][1], inner[2], inner[3]
    return None


def _format(text: str) -> str:
    return f"^(?:{text})$"


_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9]+(-+[A-Za-z0-9]+)*"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_GROUP16 = "[0-9A-Fa-f]{1,4}"
_IPV6 = "|".join(
    [
        f"({_GROUP16}:){{7}}{_GROUP16}",
        f"({_GROUP16}:){{1,7}}:",
        f":(:{_GROUP16}){{1,7}}",
        *(f"({_GROUP16}:){{1,{7 - n}}}(:{_GROUP16}){{1,{n}}}" for n in range(1, 7)),
        "::",
        rf"::(ffff:)?{_IPV4}",
    ]
)
_PATH = r"([A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*"
_QUERY = r"([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*"
_SEGMENT = r"([A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})*"
_POINTER = r"(/([^~/]|~[01])*)*"
_DURATION_TIME = r"T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)"
_DURATION_DATE = r"(\d+D|\d+M(\d+D)?|\d+Y(\d+M(\d+D)?)?)"
FORMATS = {
    "date": _format(_DATE),
    "time": _format(_TIME),
    "date-time": _format(f"{_DATE}T{_TIME}"),
    "duration": _format(rf"P({_DURATION_DATE}({_DURATION_TIME})?|{_DURATION_TIME}|\d+W)"),
    "email": _format(rf"{_ATOM}(\.{_ATOM})*@{_LABEL}(\.{_LABEL})*"),
    "hostname": _format(rf"{_LABEL}(\.{_LABEL})*"),
    "ipv4": _format(_IPV4),
    "ipv6": _format(_IPV6),
    "uuid": _format("[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"),
    "uri": _format(rf"{_SCHEME}:{_PATH}(\?{_QUERY})?(#{_QUERY})?"),
    "uri-reference": _format(
        rf"({_SCHEME}:{_PATH}|/{_PATH}|{_SEGMENT}(/{_PATH})?)(\?{_QUERY})?(#{_QUERY})?"
    ),
    "uri-template": _format(rf"({_PATH[:-1]}|[?#\[\]]|\{{[A-Za-z0-9_.,:*+#/;?&=|!@%]+\}})*"),
    "json-pointer": _format(_POINTER),
    "relative-json-pointer": _format(rf"(0|[1-9]\d*)(#|{_POINTER})"),
}
"""The supported formats as expressions, without the lengths of months and host names.

Sources: RFC 3339 (dates, times, and durations in its appendix A), 5321 and 1123 (mail, hosts), 4291
(IPv6), 3986 (URIs), 6570 (templates) and 6901 (pointers).
"""
