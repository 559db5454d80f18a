"""Assemble the pages of docs/ with their generated parts."""

from __future__ import annotations

from pathlib import Path

from tools.docs.build import build_tables
from tools.docs.contents import with_contents
from tools.docs.importing import importing_tables
from tools.docs.llm_api import llm_api_tables
from tools.docs.lmi import lmi_page
from tools.docs.messages import messages_page
from tools.docs.models import models_page
from tools.docs.openai import openai_page
from tools.docs.predict import predict_tables
from tools.docs.settings import settings_page, settings_schema
from tools.docs.tables import fill
from tools.docs.troubleshooting import troubleshooting_tables


def pages(folder: Path) -> dict[str, str]:
    """Return every page of a folder by file name, with new generated parts.

    Args:
        folder: must contain the pages that are only partly generated.
    """
    texts = {file.name: file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.md"))}
    texts |= {
        "settings.md": settings_page(),
        "openai.md": openai_page(),
        "anthropic.md": messages_page(),
        "lmi.md": lmi_page(),
        "models.md": models_page(),
    }
    tables = {
        "predict.md": predict_tables(),
        "build.md": build_tables(),
        "importing.md": importing_tables(),
        "llm-api.md": llm_api_tables(),
        "troubleshooting.md": troubleshooting_tables(),
    }
    texts |= {name: fill(texts[name], filled) for name, filled in tables.items()}
    written = {name: with_contents(text) for name, text in texts.items()}
    return {**written, "settings.schema.json": settings_schema()}
