"""docs/assumptions.md: each row has its evidence and source, and the page counts its rows."""

from __future__ import annotations

from tests.support.paths import ROOT

PAGE = ROOT / "docs/assumptions.md"
EVIDENCE = ("run", "read", "assumed")


def page_rows() -> list[list[str]]:
    """Return the cells of each row."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line.strip("|").split(" | ") for line in lines if line.startswith("| `")]
    return [[cell.strip(" `") for cell in row] for row in rows]


def test_each_row_has_its_evidence_and_source() -> None:
    rows = page_rows()
    assert len({row[0] for row in rows}) == len(rows)
    for name, assumption, releases, evidence, source, otherwise in rows:
        assert evidence in EVIDENCE, name
        assert all((assumption, releases, source, otherwise)), name


def test_the_page_counts_its_rows() -> None:
    found = [row[3] for row in page_rows()]
    run, read, assumed = (found.count(word) for word in EVIDENCE)
    sentence = f"Of {len(found)} rows, {run} are run, {read} read and {assumed} assumed."
    assert PAGE.read_text(encoding="utf-8").endswith(f"{sentence}\n")
