"""The table of contents of a long page."""

from __future__ import annotations

import pytest
from tools.docs.contents import LONG_LINES, with_contents, without_contents

HEAD = "# Page\n\nWhat it is.\n\n"


def new_page(*headings: str, lines: int = LONG_LINES, head: str = HEAD) -> str:
    sections = "".join(f"{heading}\n\ntext\n\n" for heading in headings)
    return head + sections + "line\n" * (lines - len((head + sections).splitlines()))


def entries(page: str) -> list[str]:
    table = page.partition("<!-- contents -->\n")[2].partition("<!-- end -->")[0]
    return table.strip("\n").split("\n")


def test_a_page_of_the_limit_has_none() -> None:
    page = new_page("## One")
    assert with_contents(page) == page
    assert with_contents(page + "line\n") != page + "line\n"


def test_sections_are_listed_before_the_first_one() -> None:
    page = new_page("## One", "### Of one", "#### Deep", "## `two` of 2", "## One", lines=300)
    filled = with_contents(page)
    assert entries(filled) == [
        "- [One](#one)",
        "  - [Of one](#of-one)",
        "- [`two` of 2](#two-of-2)",
        "- [One](#one-1)",
    ]
    assert filled.index("What it is.") < filled.index("- [One]") < filled.index("## One")
    assert without_contents(filled) == page


def test_the_table_follows_the_headings_and_stays_in_its_place() -> None:
    head = "# Page\n\n<!-- contents -->\n<!-- end -->\n\nWhat it is.\n\n"
    page = with_contents(new_page("## One", lines=300, head=head))
    assert page.startswith("# Page\n\n<!-- contents -->\n\n- [One](#one)\n\n<!-- end -->\n\nWhat")
    assert with_contents(page) == page
    assert entries(with_contents(page.replace("## One", "## Other"))) == ["- [Other](#other)"]


def test_a_page_that_became_short_loses_its_table() -> None:
    page = with_contents(new_page("## One", lines=LONG_LINES + 1))
    assert with_contents(page.removesuffix("line\n")) == new_page("## One")


def test_comments_of_code_blocks_are_no_headings() -> None:
    page = new_page("```\n## no heading\n```", "## One", lines=300)
    assert entries(with_contents(page)) == ["- [One](#one)"]
    assert with_contents(page).index("```") < with_contents(page).index("<!-- contents -->")


def test_the_mark_of_a_section_stays_above_its_heading() -> None:
    filled = with_contents(new_page("<!-- case -->\n## One", lines=300))
    assert "<!-- end -->\n\n<!-- case -->\n## One\n" in filled


@pytest.mark.parametrize(("sections", "listed"), [(15, 30), (16, 16)])
def test_a_long_table_lists_level_2_only(sections: int, listed: int) -> None:
    headings = [f"{mark} {number}" for number in range(sections) for mark in ("##", "###")]
    assert len(entries(with_contents(new_page(*headings, lines=300)))) == listed
