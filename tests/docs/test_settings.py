"""The pages in docs/ agree with the settings model."""

from __future__ import annotations

from tests.support.paths import ROOT
from tools.docs.settings import settings_page, settings_schema

from trtllm_truss.settings.model import Settings

DOCS = ROOT / "docs"


def test_pages_are_up_to_date() -> None:
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == settings_page()
    assert (DOCS / "settings.schema.json").read_text(encoding="utf-8") == settings_schema()


def test_every_key_has_a_sentence() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert f"| `{name}` |" in settings_page()
