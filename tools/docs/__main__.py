"""Write the generated pages: `python -m tools.docs DOCS_DIR`; tests keep them equal to the code."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.docs.pages import pages


def main(folder: Path) -> None:
    """Write the pages into a folder, which must contain those that are only partly generated."""
    for name, page in pages(folder).items():
        (folder / name).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
