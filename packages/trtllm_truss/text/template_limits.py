"""Limits on the values that a chat template creates, and on its time.

`text.time_limit` stops any loop. It cannot stop a single operation in C, so this module limits
their sizes:

- Texts and lists that a template creates and still holds may have `MAX_CHARACTERS` in total, or
  `CHARACTERS_PER_CHARACTER` per character of the conversation. They are counted when they are
  created. When the limit is reached, those that nothing else refers to any more are dropped from
  the count: some models' templates append each piece of the prompt to one text.
- A value that contains another one many times (`[x, x]`, then `[y, y]`, …) is small, but comparing,
  hashing or printing it takes unlimited time and memory. `Rendering.weigh` counts each part as
  often as it would be visited, before any of these.
- Texts and lists shorter than `COUNTED_LENGTH` are not counted: a template cannot create more than
  some 100 MB of them in a second, and its time is limited.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from sys import getrefcount
from typing import Any, TypeVar, cast

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError

MAX_SOURCE_CHARACTERS = 1 << 20
MAX_CHARACTERS = 1 << 26
CHARACTERS_PER_CHARACTER = 16
MAX_RANGE = 100_000
MAX_WIDTH = 1024
MAX_INDENTATION = 1 << 22
"""Maximum indentation of all lines of a value written as JSON; nesting multiplies its length."""

MAX_BITS = 4096
"""Maximum bits of an integer that a template computes."""

RENDER_LIMIT_S = 5.0
SHORT_RENDER_LIMIT_S = 0.25
"""Time limit for a conversation rendered on the event loop; it takes about a thousandth of this."""

COMPILE_LIMIT_S = 10.0

COUNTED_LENGTH = 64

ITEM_CHARACTERS = 16
"""Weight of an item of a list or mapping, besides its contents."""

TEXT_CHARACTERS = 64
"""Weight of a text, besides its characters."""

ESCAPED_CHARACTERS = 10
"""Characters that one character may become when a list is printed: `\\U000e0001`."""

_COUNT_AGAIN_CHARACTERS = 1 << 25

Sized = TypeVar("Sized", bound="str | list[Any] | tuple[Any, ...]")


class TemplateLimitError(TemplateError):
    """A template exceeds its time or the size of values."""


class Namespace(dict[str, Any]):
    """`namespace()`, whose attributes blocks can set; compiled templates set them as items.

    It has no Python function through which a template could reach a module.
    """

    __slots__ = ()


_LISTS: tuple[type, ...] = (list, tuple, type({}.items()), type({}.keys()), type({}.values()))
_PLAIN = frozenset({float, bool, type(None)})


class Rendering(threading.local):
    """The rendering in this thread, if any, and the values it has created."""

    _is_running = False
    _limit = _held = _count_at = 0

    def begin(self, variables: Mapping[str, Any]) -> None:
        self._is_running = True
        self._variables = variables
        self._limit = MAX_CHARACTERS
        self._is_extended = False
        self._held = 0
        self._count_at = _COUNT_AGAIN_CHARACTERS
        self._made: dict[int, Any] = {}
        self._weights: dict[int, tuple[Any, int]] = {}

    def end(self) -> None:
        self._is_running = False
        self._limit = self._held = self._count_at = 0
        self._variables = {}
        self._made = {}
        self._weights = {}

    def made(self, value: Sized) -> Sized:
        """Count a text or list that the template has created, and return it.

        Raises:
            TemplateLimitError: the template holds too much.
        """
        if len(value) >= COUNTED_LENGTH and self._is_running and id(value) not in self._made:
            self._made[id(value)] = value
            self._held += _size(value)
            if self._held > self._count_at:
                self.require(0)
        return value

    def require(self, characters: int) -> None:
        """Refuse to create a value that is too large in addition to those that the template holds.

        Raises:
            TemplateLimitError: the value is too large.
            nodes.Impossible: nothing is being rendered, because the compiler computes a constant.
        """
        if self._held + characters <= self._count_at:
            return
        if not self._is_running:
            raise nodes.Impossible
        self._count()
        if self._held + characters > self._limit and not self._is_extended:
            self._is_extended = True
            given = sum(map(self._weigh, self._variables.values()))
            self._limit = max(self._limit, CHARACTERS_PER_CHARACTER * given)
        if self._held + characters > self._limit:
            raise TemplateLimitError("it creates too large a text or list")
        self._count_at = min(self._limit, self._held + max(characters, _COUNT_AGAIN_CHARACTERS))

    def _count(self) -> None:
        """Forget values that nothing else refers to, and recount the others."""
        self._weights.clear()
        made = [*self._made.values(), "".join(("un", "used"))]
        self._made.clear()
        *counts, unused = map(getrefcount, made)
        self._made |= {
            id(value): value for value, count in zip(made, counts, strict=False) if count > unused
        }
        self._held = sum(map(_size, self._made.values()))

    def weigh(self, value: Any) -> int:
        """Return the characters and items of a value, each as often as it would be visited.

        Raises:
            TemplateLimitError: there are too many.
        """
        weight = self._weigh(value)
        self.require(weight)
        return weight

    def _weigh(self, value: Any) -> int:
        if isinstance(value, str):
            return len(value)
        kind = type(value)
        if kind in _PLAIN:
            return ITEM_CHARACTERS
        if kind is int:
            return max(ITEM_CHARACTERS, int(value).bit_length())
        known = self._weights.get(id(value)) if self._is_running else None
        if known is not None:
            return known[1]
        items: Iterable[Any]
        if isinstance(value, Namespace):
            raise SecurityError("a namespace cannot be shown or compared.")
        if isinstance(value, Mapping):
            items = (part for pair in value.items() for part in pair)
        elif isinstance(value, _LISTS):
            items = cast("Iterable[Any]", value)
        else:
            return ITEM_CHARACTERS
        weight = ITEM_CHARACTERS
        for item in items:
            weight += ITEM_CHARACTERS + self._weigh(item)
        if self._is_running:
            self._weights[id(value)] = value, weight  # kept, so that its id is not reused
        return weight


def _size(value: Sized) -> int:
    item = 1 if isinstance(value, str) else ITEM_CHARACTERS
    return TEXT_CHARACTERS + item * len(value)


rendering = Rendering()
"""The rendering in each thread."""


def require_width(value: Any) -> int:
    """Return a number of characters to which a template pads a text.

    Raises:
        TemplateLimitError: the number is too large.
    """
    width = int(value)
    if width > MAX_WIDTH:
        raise TemplateLimitError(f"a width in it is larger than {MAX_WIDTH:,}")
    return width


def require_indentation(characters: int) -> None:
    """Refuse to indent a value whose lines would start with too many blanks.

    Raises:
        TemplateLimitError: there are too many.
    """
    if characters > MAX_INDENTATION:
        raise TemplateLimitError(
            "a value is nested too deeply for its length: indented, its lines would start with "
            f"more than {MAX_INDENTATION:,} blanks"
        )


def require_range(count: int) -> int:
    """Return the number of items of a range.

    Raises:
        TemplateLimitError: the number is too large.
    """
    if count > MAX_RANGE:
        raise TemplateLimitError(f"a range in it is longer than {MAX_RANGE:,}")
    return count


def require_bits(bits: int) -> None:
    """Raise TemplateLimitError if an integer has too many bits."""
    if bits > MAX_BITS:
        raise TemplateLimitError(f"a number in it has more than {MAX_BITS:,} bits")
