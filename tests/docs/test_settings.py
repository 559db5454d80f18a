"""The pages in docs/ agree with the settings model."""

from __future__ import annotations

from tools.docs.settings import settings_page

from trtllm_truss.settings.model import Settings


def test_every_key_has_a_sentence() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert f"| `{name}` |" in settings_page()
