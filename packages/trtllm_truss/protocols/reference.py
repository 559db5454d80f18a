"""The protocols as documentation: `python -m trtllm_truss.protocols.reference DOCS_DIR`.

Writes `openai.md` and `lmi.md`; a test keeps both equal to the code.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trtllm_truss.protocols.lmi.reference import lmi_page
from trtllm_truss.protocols.openai.reference import openai_page


def main() -> None:
    """Writes both pages into the folder that the command line names."""
    folder = Path(sys.argv[1])
    (folder / "openai.md").write_text(openai_page(), encoding="utf-8")
    (folder / "lmi.md").write_text(lmi_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
