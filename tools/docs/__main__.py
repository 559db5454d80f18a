"""Write the generated pages: `python -m tools.docs DOCS_DIR`; tests keep them equal to the code."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.docs.build import build_tables
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


def main(folder: Path) -> None:
    """Write the pages into a folder, which must hold those of which only tables are generated."""
    build = (folder / "build.md").read_text(encoding="utf-8")
    importing = (folder / "importing.md").read_text(encoding="utf-8")
    llm_api = (folder / "llm-api.md").read_text(encoding="utf-8")
    predict = (folder / "predict.md").read_text(encoding="utf-8")
    troubleshooting = (folder / "troubleshooting.md").read_text(encoding="utf-8")
    pages = {
        "settings.md": settings_page(),
        "settings.schema.json": settings_schema(),
        "openai.md": openai_page(),
        "anthropic.md": messages_page(),
        "lmi.md": lmi_page(),
        "models.md": models_page(),
        "predict.md": fill(predict, predict_tables()),
        "build.md": fill(build, build_tables()),
        "importing.md": fill(importing, importing_tables()),
        "llm-api.md": fill(llm_api, llm_api_tables()),
        "troubleshooting.md": fill(troubleshooting, troubleshooting_tables()),
    }
    for name, page in pages.items():
        (folder / name).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
