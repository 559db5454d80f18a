"""The files of the page: small, complete, and without a way for text to become markup."""

from __future__ import annotations

import re
from itertools import product

import pytest
from tests.support.paths import ROOT

from trtllm_workbench.console.app import _FILES

PAGE = ROOT / "workbench/trtllm_workbench/console/page"
FILES = sorted(PAGE.iterdir())
HTML = (PAGE / "index.html").read_text(encoding="utf-8")
CSS = (PAGE / "page.css").read_text(encoding="utf-8")
SCRIPTS = "\n".join(file.read_text(encoding="utf-8") for file in FILES if file.suffix == ".js")
LARGEST_BYTES = 60_000
LEAST_CONTRAST = 4.5  # WCAG 2.2 AA


def test_it_is_small_and_every_file_is_served() -> None:
    assert sum(file.stat().st_size for file in FILES) < LARGEST_BYTES
    assert {name for name, _ in _FILES.values()} == {file.name for file in FILES}


def test_nothing_comes_from_elsewhere() -> None:
    known = {"http://www.w3.org/2000/svg"}
    for file in FILES:
        urls = set(
            re.findall(
                r"(?:https?:)?//[\w.-]+[\w/.-]*",
                re.sub(r"^\s*//.*$", "", file.read_text(), flags=re.M),
            )
        )
        assert {url for url in urls if url.startswith("http")} <= known, file
    links = re.findall(r'(?:src|href)="([^"#]+)"', HTML)
    assert links
    assert {link for link in links if link not in _FILES} == set()
    assert set(re.findall(r'from "\./([^"]+)"', SCRIPTS)) <= {file.name for file in FILES}


@pytest.mark.parametrize(
    "word",
    [
        *("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser"),
        *("createContextualFragment", "setHTML", "eval(", "Function(", "srcdoc", "javascript:"),
        *("localStorage", "sessionStorage", "indexedDB", "document.cookie", "href ="),
    ],
)
def test_text_cannot_become_markup_and_is_not_stored(word: str) -> None:
    assert word not in SCRIPTS


def test_the_markup_has_no_inline_code_or_style() -> None:
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?! type=\"module\" src=)", HTML)


def test_the_scripts_find_their_elements() -> None:
    ids = re.findall(r'\bid="([^"]+)"', HTML)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'\$\("([\w-]+)"\)|put\("([\w-]+)"', SCRIPTS))
    assert {one or other for one, other in used} <= set(ids)
    references = re.findall(r'(?:aria-labelledby|aria-describedby|for)="([^"]+)"', HTML)
    assert set(references) <= set(ids)


def luminance(color: str) -> float:
    digits = color.lstrip("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_colours_have_enough_contrast(place: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    colors = dict(re.findall(r"--([\w-]+): (#\w+)", blocks[place]))
    pairs = [*product(("text", "quiet", "good", "warn", "bad", "accent"), ("ground", "raised"))]
    for one, other in [*pairs, ("on-accent", "accent")]:
        low, high = sorted(luminance(colors[name]) for name in (one, other))
        assert (high + 0.05) / (low + 0.05) >= LEAST_CONTRAST, (one, other)
