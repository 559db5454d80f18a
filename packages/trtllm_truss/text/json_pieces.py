"""`json.dumps` in pieces, for threads that run next to an event loop.

The C encoder holds Python's lock throughout: 6 MB take 50 ms, during which no stream of the server
proceeds. A piece takes a millisecond.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

PIECE_CHARACTERS = 1 << 16
_ITEM_CHARACTERS = 16
"""Size charged for an item of a container, besides its text."""

_MOST_TOGETHER = 1 << 12
_NUMBERS = {int, float, bool, type(None)}


def dumps_in_pieces(
    value: Any,
    *,
    ensure_ascii: bool,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return what `json.dumps` returns.

    Raises:
        TypeError, ValueError, RecursionError: as `json.dumps`.
    """
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys
    )
    parts: list[str] = []
    _write(value, encoder, parts.append)
    return "".join(parts)


def _write(value: Any, encoder: json.JSONEncoder, write: Callable[[str], object]) -> None:
    if _characters(value) <= PIECE_CHARACTERS:
        write(encoder.encode(value))
    elif isinstance(value, str):
        write('"')
        for begin in range(0, len(value), PIECE_CHARACTERS):
            write(encoder.encode(value[begin : begin + PIECE_CHARACTERS])[1:-1])
        write('"')
    elif isinstance(value, Mapping):
        items = sorted(value.items()) if encoder.sort_keys else [*value.items()]
        _write_items(items, True, encoder, write)
    else:
        _write_items(value, False, encoder, write)


def _write_items(
    items: Sequence[Any], are_pairs: bool, encoder: json.JSONEncoder, write: Callable[[str], object]
) -> None:
    """Write the items of a container: small ones together, large ones in pieces of their own."""
    head = "{" if are_pairs else "["
    place, count = 0, _MOST_TOGETHER
    while place < len(items):
        together = items[place : place + count]
        if _characters(together) <= PIECE_CHARACTERS:
            write(head + encoder.encode(dict(together) if are_pairs else together)[1:-1])
            count = min(2 * count, _MOST_TOGETHER)
        elif count > 1:
            count = max(1, count // 8)
            continue
        else:
            write(head)
            (value,) = together
            if are_pairs:
                write(encoder.encode({value[0]: 0})[1:-2])
                value = value[1]
            _write(value, encoder, write)
        place += len(together)
        head = encoder.item_separator
    write("}" if are_pairs else "]")


def _characters(value: Any) -> int:
    """Return the size of a value, exact only below that of a piece."""
    characters = 0
    values = [value]
    while values and characters <= PIECE_CHARACTERS:
        value = values.pop()
        if isinstance(value, Mapping):
            values += value.items()
        elif isinstance(value, list | tuple):
            kinds = set(map(type, value))
            if kinds == {str}:
                characters += sum(map(len, value))
            elif not kinds <= _NUMBERS:
                values += value
            characters += _ITEM_CHARACTERS * len(value)
        elif isinstance(value, str):
            characters += len(value)
    return characters


def indentation(value: Any, most: int) -> int:
    """Return the number of levels by which all lines of a value are indented.

    Args:
        most: stop counting beyond it.
    """
    levels = 0
    values = [(value, 1)]
    while values and levels <= most:
        value, level = values.pop()
        inner = value.values() if isinstance(value, Mapping) else value
        if not isinstance(value, Mapping | list | tuple):
            continue
        levels += level * len(inner)
        values += ((each, level + 1) for each in inner if isinstance(each, Mapping | list | tuple))
    return levels
