"""The generated parts of the pages are up to date."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest
from tests.support.paths import ROOT
from tools.docs.pages import pages

DOCS = ROOT / "docs"
NAMES = sorted(file.name for pattern in ("*.md", "*.json") for file in DOCS.glob(pattern))


@cache
def generated() -> Mapping[str, str]:
    return pages(DOCS)


def test_each_page_is_checked() -> None:
    assert sorted(generated()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == generated()[name], "run make docs"
