"""Operations of chat templates on values: methods, operators, filters, tests and functions.

Each is Jinja's or Python's own, within the limits of `text.template_limits`. Filters that produce
HTML pages are omitted, some of which take time out of proportion to a text (`pprint`, `striptags`,
`urlize`, `wordwrap`, `xmlattr`), as are functions whose classes lead to the module `os` (`cycler`,
`joiner`, `lipsum`). None of 73 public chat templates from 2023 to 2026 uses any of them.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial, wraps
from typing import Any, NoReturn, Protocol, cast

from jinja2 import Environment, TemplateError, filters, pass_environment, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.nodes import EvalContext
from jinja2.runtime import LoopContext, markup_join
from jinja2.tests import TESTS as JINJA_TESTS
from markupsafe import Markup, escape

from trtllm_truss.text.json_pieces import PIECE_CHARACTERS, dumps_in_pieces, indentation
from trtllm_truss.text.template_limits import (
    COUNTED_LENGTH,
    ESCAPED_CHARACTERS,
    ITEM_CHARACTERS,
    MAX_INDENTATION,
    TEXT_CHARACTERS,
    Namespace,
    rendering,
    require_bits,
    require_indentation,
    require_range,
    require_width,
)

Function = Callable[..., Any]


class Attributes(Protocol):
    """The part of the sandbox that filters need."""

    def attribute(self, obj: Any, name: str) -> Any:
        """Return a listed attribute, never an item."""


_MAX_DEPTH = 64
"""Maximum depth of a JSON body."""

_NUMBER_CHARACTERS = 4300
"""Longest text parsed as a number; Python's own limit, which its first releases lack."""


def as_text(value: Any) -> str:
    """Return the text of a value, like `str`."""
    if isinstance(value, str):
        return value
    return rendering.made(str(bounded(value)))


def bounded(value: Any) -> Any:
    """Return a value that may be compared, hashed or printed.

    Raises:
        TemplateLimitError: that would take too much time or memory.
    """
    if not isinstance(value, str):
        rendering.require(ESCAPED_CHARACTERS * rendering.weigh(value))
    return value


def concat(texts: Iterable[str]) -> str:
    """Join texts."""
    parts = [*texts]
    rendering.require(sum(map(len, parts)))
    return rendering.made("".join(parts))


# Methods

_SPACES = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f "
    "\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
    "\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""Characters that `str.isspace` admits; the first ten are ASCII."""

_LINE_ENDS = "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"


def _split(name: str, text: str, sep: str | None = None, maxsplit: int = -1) -> Any:
    if sep is None:
        cuts = sum(map(text.count, _SPACES[:10] if text.isascii() else _SPACES))
    else:
        cuts = text.count(sep) if sep else 0
    if maxsplit >= 0:
        cuts = min(cuts, maxsplit)
    rendering.require(TEXT_CHARACTERS * (cuts + 1) + len(text))
    return _made_parts(getattr(text, name)(sep, maxsplit))


def _split_lines(text: str, keepends: bool = False) -> Any:
    rendering.require(TEXT_CHARACTERS * _line_count(text) + len(text))
    return _made_parts(text.splitlines(keepends))


def _line_count(text: str) -> int:
    return sum(map(text.count, _LINE_ENDS)) + 1


def _made_parts(parts: Any) -> Any:
    for part in parts:
        rendering.made(part)
    return rendering.made(parts)


def _partition(name: str, text: str, sep: str) -> Any:
    return _made_parts(getattr(text, name)(sep))


def _change(name: str, text: str, *values: Any) -> Any:
    """Call a method whose result is hardly longer than the text."""
    return rendering.made(getattr(text, name)(*values))


def _pad(name: str, text: str, width: Any, *fill: str) -> Any:
    return rendering.made(getattr(text, name)(require_width(width), *fill))


def _expand_tabs(text: str, tabsize: int = 8) -> str:
    rendering.require(len(text) + text.count("\t") * require_width(tabsize))
    return rendering.made(text.expandtabs(tabsize))


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    rendering.require(_replaced_length(text, old, new))
    return rendering.made(text.replace(old, new, count))


def _replaced_length(text: str, old: str, new: str) -> int:
    return len(text) + text.count(old) * len(new)


def _join(separator: str, items: Iterable[Any]) -> str:
    parts = [*items]
    rendering.require(rendering.weigh(parts) + len(separator) * len(parts))
    return rendering.made(separator.join(parts))


def _get(mapping: Mapping[Any, Any], key: Any, default: Any = None) -> Any:
    return mapping.get(bounded(key), default)


def _search(name: str, items: Sequence[Any], value: Any, *bounds: int) -> Any:
    return getattr(bounded(items), name)(bounded(value), *bounds)


def _changed(loop: LoopContext, *values: Any) -> bool:
    return loop.changed(*map(bounded, values))


STR: dict[str, Function | None] = {
    **dict.fromkeys(
        (
            *("count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal"),
            *("isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace"),
            *("istitle", "isupper", "rfind", "rindex", "startswith"),
        )
    ),
    **{
        name: partial(_change, name)
        for name in (
            *("capitalize", "casefold", "lower", "lstrip", "removeprefix", "removesuffix"),
            *("rstrip", "strip", "swapcase", "title", "upper"),
        )
    },
    **{name: partial(_split, name) for name in ("split", "rsplit")},
    **{name: partial(_partition, name) for name in ("partition", "rpartition")},
    **{name: partial(_pad, name) for name in ("center", "ljust", "rjust", "zfill")},
    "splitlines": _split_lines,
    "expandtabs": _expand_tabs,
    "replace": _replace,
    "join": _join,
}
"""Methods of `str`, each with a function that limits it; None if no limit is needed.

The sandbox provides `format` and `format_map`.
"""
MAPPING: dict[str, Function | None] = {**dict.fromkeys(("items", "keys", "values")), "get": _get}
SEQUENCE: dict[str, Function | None] = {name: partial(_search, name) for name in ("count", "index")}
LOOP: dict[str, Function | None] = {
    **dict.fromkeys(
        (
            *("cycle", "depth", "depth0", "first", "index", "index0", "last", "length"),
            *("nextitem", "previtem", "revindex", "revindex0"),
        )
    ),
    "changed": _changed,
}


# Operators

_SIZED = (str, list, tuple)
_CONVERSION = re.compile(r"[#0\- +]*(?P<width>\*|[0-9]*)(?:\.(?P<digits>\*|[0-9]*))?")


def add(left: Any, right: Any) -> Any:
    """Return `left + right`."""
    if isinstance(left, str) and isinstance(right, str) and len(left) + len(right) < COUNTED_LENGTH:
        return left + right
    if not (isinstance(left, _SIZED) and isinstance(right, _SIZED)):
        return left + right
    item = 1 if isinstance(left, str) else ITEM_CHARACTERS
    rendering.require(item * (len(left) + len(right)))
    total: Any = operator.add(left, right)
    return rendering.made(total)


def multiply(left: Any, right: Any) -> Any:
    """Return `left * right`."""
    for some, count in ((left, right), (right, left)):
        if isinstance(some, _SIZED) and isinstance(count, int):
            item = 1 if isinstance(some, str) else ITEM_CHARACTERS
            rendering.require(item * len(some) * max(0, count))
            return rendering.made(some * count)
    if isinstance(left, int) and isinstance(right, int):
        require_bits(left.bit_length() + right.bit_length())
    return left * right


def power(base: Any, exponent: Any) -> Any:
    """Return `base ** exponent`."""
    if isinstance(base, int) and isinstance(exponent, int):
        require_bits(base.bit_length() * abs(exponent))
    return base**exponent


def modulo(left: Any, right: Any) -> Any:
    """Return `left % right`: a remainder, or a text formatted by a pattern.

    Raises:
        SecurityError: the pattern takes a width from a value.
        TemplateLimitError: the result is too large.
    """
    if not isinstance(left, str):
        return left % right
    weight = rendering.weigh(right)
    length = len(left)
    begin = 0
    while (begin := left.find("%", begin) + 1) > 0:
        begin = _after_key(left, begin)
        found = _CONVERSION.match(left, begin)
        assert found is not None, "it matches the empty text"
        if "*" in found.group("width", "digits"):
            raise SecurityError("a width of * in a pattern is not available.")
        length += require_width(found["width"] or 0) + require_width(found["digits"] or 0)
        if isinstance(right, Mapping):  # each value may occur again and again
            length += ESCAPED_CHARACTERS * weight
        begin = found.end() + 1
    rendering.require(length + ESCAPED_CHARACTERS * weight)
    return rendering.made(left % right)


def _after_key(pattern: str, begin: int) -> int:
    """Return the place after a name in parentheses, which may be nested."""
    depth = 0
    for place in range(begin, len(pattern)):
        depth += (pattern[place] == "(") - (pattern[place] == ")")
        if depth == 0:
            return place + (pattern[place] == ")")
    return len(pattern)


def sliced(value: Any, *bounds: Any) -> Any:
    """Return `value[start:stop:step]`."""
    part = value[slice(*bounds)]
    return rendering.made(part) if isinstance(part, _SIZED) else part


@pass_eval_context
def concatenated(context: EvalContext, *values: Any) -> str:
    """Return `a ~ b ~ …`."""
    if context.autoescape:
        return rendering.made(markup_join(map(bounded, values)))
    return concat(map(as_text, values))


# Filters


@pass_environment
def _attribute(environment: Attributes, value: Any, name: Any) -> Any:
    return environment.attribute(value, as_text(name))


def _weighed(function: Function) -> Function:
    """Weigh all values of a filter or test, which may compare, hash or print them."""

    @wraps(function)  # with Jinja's mark of its first argument
    def limited(*values: Any, **named: Any) -> Any:
        # A filter would consume the items of an iterator unseen.
        values = tuple([*each] if isinstance(each, Iterator) else each for each in values)
        for each in (*values, *named.values()):
            bounded(each)
        made = function(*values, **named)
        return rendering.made(made) if isinstance(made, str | list) else made

    return limited


def _escape(value: Any) -> Markup:
    text = as_text(value)
    rendering.require(len(text) + 4 * sum(map(text.count, "&<>'\"")))
    return rendering.made(escape(text))


def _format(pattern: Any, *values: Any, **named: Any) -> Any:
    return modulo(as_text(pattern), named or values)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = as_text(value)
    added = require_width(len(width) if isinstance(width, str) else width)
    rendering.require(len(text) + added * _line_count(text))
    return rendering.made(filters.do_indent(text, width, first, blank))


def _integer(value: Any, default: int = 0, base: int = 10) -> int:
    if isinstance(value, str) and len(value) > _NUMBER_CHARACTERS:
        return default
    return filters.do_int(value, default, base)


@pass_eval_context
def _joined(context: EvalContext, value: Any, d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(filters.make_attrgetter(context.environment, attribute), value)
    texts, separator = [*map(as_text, value)], as_text(d)
    length = sum(map(len, texts)) + len(separator) * len(texts)
    if context.autoescape:
        rendering.require(ESCAPED_CHARACTERS * length)
        return rendering.made(filters.sync_do_join(context, texts, separator))
    rendering.require(length)
    return rendering.made(str(separator).join(texts))


def _list(value: Iterable[Any]) -> list[Any]:
    if isinstance(value, str):
        rendering.require(TEXT_CHARACTERS * len(value))
    return rendering.made([*value])


def _parted(function: Function) -> Function:
    """Limit the number of parts of `slice`, or of the items in a part of `batch`."""

    def limited(value: Any, count: int, fill_with: Any = None) -> Any:
        return function(value, require_range(count), fill_with)

    return limited


@pass_eval_context
def _replaced(
    context: EvalContext, value: Any, old: Any, new: Any, count: int | None = None
) -> str:
    texts = as_text(value), as_text(old), as_text(new)
    growth = ESCAPED_CHARACTERS if context.autoescape else 1
    rendering.require(growth * _replaced_length(*texts))
    return rendering.made(filters.do_replace(context, *texts, count))


def _reversed(value: Any) -> Any:
    return rendering.made(value[::-1]) if isinstance(value, str) else filters.do_reverse(value)


def _rounded(value: float, precision: int = 0, method: Any = "common") -> float:
    require_width(abs(precision))
    return filters.do_round(value, precision, method)


def _safe(value: Any) -> Markup:
    return rendering.made(Markup(as_text(value)))  # noqa: S704 - no page shows it


@pass_environment
def _summed(environment: Environment, items: Any, attribute: Any = None, start: Any = 0) -> Any:
    if attribute is not None:
        items = map(filters.make_attrgetter(environment, attribute), items)
    for item in items:
        start = add(start, item)
    return start


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which a model would read literally.
    weight = rendering.weigh(value)
    added = sum(require_width(len(text)) for text in separators or ())
    if indent is not None:
        width = require_width(len(indent) if isinstance(indent, str) else indent)
        require_indentation(width * indentation(value, MAX_INDENTATION // max(1, width)))
        added += _MAX_DEPTH * width
    rendering.require(ESCAPED_CHARACTERS * weight + added * (weight // ITEM_CHARACTERS))
    options: dict[str, Any] = {"separators": separators, "sort_keys": sort_keys}
    if indent is None and weight > PIECE_CHARACTERS:
        text = dumps_in_pieces(value, ensure_ascii=ensure_ascii, **options)
    else:
        text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
    return rendering.made(text)


def _title(value: Any) -> str:
    text = as_text(value)
    rendering.require(TEXT_CHARACTERS * len(text))  # it is split into words
    return rendering.made(filters.do_title(text))


def _url_encoded(value: Any) -> str:
    rendering.require(12 * rendering.weigh(value))  # of four bytes, %XX each
    return rendering.made(filters.do_urlencode(value))


def _word_count(value: Any) -> int:
    return sum(1 for _ in re.finditer(r"\w+", as_text(value)))


FILTERS: dict[str, Function] = {
    **{
        name: cast("Function", filters.FILTERS[name])
        for name in (
            *("abs", "count", "d", "default", "filesizeformat", "first", "float", "items", "last"),
            *("length", "map", "random", "reject", "rejectattr", "select", "selectattr"),
        )
    },
    **{
        name: _weighed(cast("Function", filters.FILTERS[name]))
        for name in (*("dictsort", "groupby", "max", "min", "sort", "truncate", "unique"),)
    },
    "attr": _attribute,
    "batch": _parted(filters.do_batch),
    "capitalize": lambda value: rendering.made(as_text(value).capitalize()),
    "center": lambda value, width=80: _pad("center", as_text(value), width),
    "e": _escape,
    "escape": _escape,
    "forceescape": lambda value: _escape(str(as_text(value))),
    "format": _format,
    "indent": _indent,
    "int": _integer,
    "join": _joined,
    "list": _list,
    "lower": lambda value: rendering.made(as_text(value).lower()),
    "replace": _replaced,
    "reverse": _reversed,
    "round": _rounded,
    "safe": _safe,
    "slice": _parted(filters.sync_do_slice),
    "string": as_text,
    "sum": _summed,
    "title": _title,
    "tojson": _to_json,
    "trim": lambda value, chars=None: rendering.made(as_text(value).strip(chars)),
    "upper": lambda value: rendering.made(as_text(value).upper()),
    "urlencode": _url_encoded,
    "wordcount": _word_count,
}


# Tests


def _number(value: Any) -> Any:
    """Return a value unless it is a text, which `%` would use as a pattern."""
    if isinstance(value, str):
        raise TypeError("a text is not a number")
    return value


TESTS: dict[str, Function] = {
    **{name: _weighed(cast("Function", test)) for name, test in JINJA_TESTS.items()},
    **{
        name: cast("Function", JINJA_TESTS[name])
        for name in (
            *("boolean", "callable", "defined", "escaped", "false", "float", "integer"),
            *("iterable", "mapping", "none", "number", "sameas", "sequence", "string", "true"),
            "undefined",
        )
    },
    "odd": lambda value: _number(value) % 2 == 1,
    "even": lambda value: _number(value) % 2 == 0,
    "divisibleby": lambda value, num: _number(value) % num == 0,
}


# Functions


def _range(*bounds: int) -> range:
    made = range(*bounds)
    require_range(len(made))
    return made


def _dict(*pairs: Any, **named: Any) -> dict[Any, Any]:
    return dict(
        *([*each] if isinstance(each, Iterator) else bounded(each) for each in pairs), **named
    )


def _namespace(*pairs: Any, **named: Any) -> Namespace:
    return Namespace(_dict(*pairs, **named))


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateError(as_text(message))


def _strftime_now(pattern: str) -> str:
    require_width(len(pattern))
    return datetime.now().strftime(pattern)


FUNCTIONS: dict[str, Function] = {
    "dict": _dict,
    "namespace": _namespace,
    "raise_exception": _raise_exception,
    "range": _range,
    "strftime_now": _strftime_now,
}
