"""The table of contents of a long page."""

from __future__ import annotations

import re

LONG_LINES = 200
"""Longer pages get a table of contents; the table's own lines are not counted."""

_MOST_ENTRIES = 30
"""Subsections are omitted if the table would have more entries."""

_TABLE = re.compile(r"^<!-- contents -->\n.*?^<!-- end -->\n", re.MULTILINE | re.DOTALL)
_MARKS = "<!-- contents -->\n{}<!-- end -->\n"
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_COMMENTS = re.compile(r"(?:<!-- [^>]* -->\n)*\Z")


def with_contents(page: str) -> str:
    """Return a page with a new table of contents, or without one if it is short.

    The table stays at its marks (``<!-- contents -->`` and ``<!-- end -->``). A long page without
    marks gets it before its first section.
    """
    if len(without_contents(page).splitlines()) <= LONG_LINES:
        return without_contents(page)
    if not _TABLE.search(page):
        page = _with_marks(page)
    table = _MARKS.format("\n" + "".join(f"{line}\n" for line in _entries(page)) + "\n")
    return _TABLE.sub(lambda _: table, page, count=1)


def without_contents(page: str) -> str:
    """Return a page without its table of contents, and without the blank line after it."""
    return re.sub(_TABLE.pattern + r"\n?", "", page, count=1, flags=_TABLE.flags)


def _with_marks(page: str) -> str:
    """Put the marks before the first section and the comments directly above it."""
    first = next(heading for heading in _headings(page) if len(heading[1]) > 1)
    above = page[: first.start()]
    place = _COMMENTS.search(above).start()  # type: ignore[union-attr]  # it matches the empty text
    return page[:place] + _MARKS.format("") + "\n" + page[place:]


def _entries(page: str) -> list[str]:
    """Return a line for each section of level 2, and of level 3 if these are few."""
    entries: list[tuple[int, str]] = []
    anchors: list[str] = []
    for heading in _headings(page):
        level, title = len(heading[1]), heading[2]
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")  # in GitHub's form
        before = anchors.count(slug)
        anchors.append(slug)
        anchor = f"{slug}-{before}" if before else slug
        if level in (2, 3):
            entries.append((level, f"{'  ' * (level - 2)}- [{title}](#{anchor})"))
    deepest = 3 if len(entries) <= _MOST_ENTRIES else 2
    return [line for level, line in entries if level <= deepest]


def _headings(page: str) -> list[re.Match[str]]:
    """Return the matches of `_HEADING` outside code blocks."""
    hidden = _FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), page)
    return list(_HEADING.finditer(hidden))
