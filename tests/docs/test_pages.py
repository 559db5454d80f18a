"""The generated parts of the pages are up to date."""

from __future__ import annotations

import pytest
from tests.support.paths import ROOT
from tools.docs.pages import pages

DOCS = ROOT / "docs"
GENERATED = pages(DOCS)


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_the_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == GENERATED[name], "run make docs"
