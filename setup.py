"""Put what `trtllm-truss init` copies into the wheel; pyproject.toml has everything else.

setuptools has no declaration for files outside the package's folder. `scaffold/documents.py` reads
them.
"""

import ast
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FOLDER = "workbench/trtllm_workbench/scaffold/documents.py"


def constants() -> dict[str, object]:
    """Return the constants of `scaffold/documents.py` without importing its dependencies."""
    tree = ast.parse((ROOT / FOLDER).read_text(encoding="utf-8"))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


class BuildWithTrussFiles(build_py):
    """Adds the files of a Truss to the package, in the wheel and in the source distribution."""

    def _truss_files(self) -> list[Path]:
        parts = [ROOT / part for part in constants()["PARTS"]]
        files = [file for part in parts for file in ([part] if part.is_file() else part.rglob("*"))]
        return [file for file in files if file.is_file() and "__pycache__" not in file.parts]

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "trtllm_workbench" / str(constants()["_IN_WHEEL"])
        for file in self._truss_files():
            place = target / file.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)

    def get_source_files(self) -> list[str]:
        return [
            *super().get_source_files(),
            *(str(f.relative_to(ROOT)) for f in self._truss_files()),
        ]


setup(cmdclass={"build_py": BuildWithTrussFiles})
