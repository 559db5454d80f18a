"""Write the lock files, which fix every version with the hashes of its files.

`python -m tools.lock` uses the newest versions, or with `--keep` those of the present files. uv
locks a temporary project for the machines listed in CONTRIBUTING.md: `uv pip compile` alone would
list the files of every platform, five times as many lines.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).with_name("uv")
NAMES = ("dev", "serve", "clients", "aider", "dynamo", "fleet", "bench", "peers")
"""Locks with all dependencies; a later one may follow the versions of an earlier one."""
FOLLOWED = {"serve": "dev", "bench": "dev"}
ALONE = ("pip", "wheels", "reference", "frontend")
"""Locks without dependencies."""
LEFT_OUT = ("rouge-score", "sqlitedict", "word2number")
"""Dependencies of lm_eval that are source packages, which a lock may not contain.

It imports them only for its cache of answers (`--use_cache`) and for some bundled tasks.
"""

_ENVIRONMENT = (
    "sys_platform == 'linux'",
    "platform_machine == 'x86_64'",
    "implementation_name == 'cpython'",
    "platform_python_implementation == 'CPython'",
    "os_name == 'posix'",
)
_PROJECT = f"""
[project]
name = "trtllm-truss-lock"
version = "0"
requires-python = ">=3.10,<3.14"
dependencies = []

[tool.uv]
package = false
no-build = true
exclude-dependencies = [{", ".join(f'"{name}"' for name in LEFT_OUT)}]
environments = ["{" and ".join(_ENVIRONMENT)}"]
"""
_CLAUSE = "|".join(map(re.escape, _ENVIRONMENT))


def file_of(name: str, ending: str = "txt") -> Path:
    return ROOT / f"requirements/{name}.{ending}"


def lock(name: str, constraints: Sequence[Path]) -> str:
    """Resolve `requirements/NAME.in`; return its lock."""
    options = [option for file in constraints for option in ("--constraints", str(file))]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyproject.toml").write_text(_PROJECT, encoding="utf-8")
        _uv(folder, "add", "--no-sync", "--requirements", str(file_of(name, "in")), *options)
        quiet = ("--no-header", "--no-annotate", "--no-emit-project")
        return _without_environment(_uv(folder, "export", "--frozen", *quiet))


def lock_alone(name: str) -> str:
    """Return the lock of wheels that are installed without their dependencies."""
    command = ("pip", "compile", "--no-deps", "--generate-hashes", "--universal")
    quiet = ("--python-version", "3.10", "--no-header", "--no-annotate")
    return _uv(str(ROOT), *command, *quiet, str(file_of(name, "in")))


def main() -> None:
    """Write all lock files."""
    keeps = "--keep" in sys.argv[1:]
    for name in NAMES:
        constraints = [file_of(each) for each in (FOLLOWED.get(name),) if each]
        text = lock(name, [*constraints, *([file_of(name)] if keeps else [])])
        file_of(name).write_text(text, encoding="utf-8")
    for name in ALONE:
        file_of(name).write_text(lock_alone(name), encoding="utf-8")


def _without_environment(text: str) -> str:
    """Drop the marker clauses that hold on every machine of the project."""
    text = re.sub(rf" and (?:{_CLAUSE})", "", text)
    text = re.sub(rf" ; (?:{_CLAUSE})(?: and )?(?=[ \\])", "", text)
    assert not re.search(_CLAUSE, text), "a marker with `or`: extend this function"
    return text


def _uv(folder: str, *words: str) -> str:
    command = [str(UV), *words, "--quiet"]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
