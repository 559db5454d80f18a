"""The examples of docs/clients.md, run as they stand against another address."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT

PAGE = ROOT / "docs/clients.md"
ADDRESS = "localhost:8080"
NODE_MODULES = Path(sys.prefix) / "node/node_modules"
NODE_LIMIT_S = 120


def blocks(title: str, language: str) -> list[str]:
    """Return the code blocks under a heading; those before the first heading have the title ""."""
    before, *sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = {"": before, **{text.partition("\n")[0]: text for text in sections}}
    return re.findall(rf"^```{language}\n(.*?)^```", texts[title], re.MULTILINE | re.DOTALL)


def run_python(title: str, address: str, folder: Path) -> dict[str, Any]:
    """Run the page's first lines and those under a heading, and return all variables."""
    text = "\n".join([*blocks("", "python"), *(blocks(title, "python") if title else ())])
    script = folder / "example.py"  # smolagents reads the source of functions
    script.write_text(text.replace(ADDRESS, address))
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(script.read_text(), script, "exec", dont_inherit=True), names)
    return names


def run_node(title: str, result: str, address: str, folder: Path) -> Any:
    """Run the JavaScript under a heading, and return the JSON value of an expression after it."""
    return run_js("\n".join(blocks(title, "js")), result, address, folder)


def run_js(text: str, result: str, address: str, folder: Path) -> Any:
    """Run JavaScript against an address, and return the JSON value of an expression after it."""
    node = shutil.which("node")
    if node is None or not NODE_MODULES.is_dir():
        pytest.skip("Node is not installed: its clients are not tested.")
    (folder / "node_modules").symlink_to(NODE_MODULES)
    script = folder / "example.mjs"
    script.write_text(f"{text}\nconsole.log(JSON.stringify({result}));".replace(ADDRESS, address))
    ended = subprocess.run(
        [node, script], capture_output=True, text=True, timeout=NODE_LIMIT_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)
