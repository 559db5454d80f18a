"""The lock files fix every file by its hash, and everything that installs from them compares it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT
from tools.lock import ALONE, FOLLOWED, NAMES, file_of
from tools.sbom import LOCKS, bill

ALL = [*NAMES, *ALONE]
PIN = re.compile(r"^(?P<name>[a-z0-9-]+)(\[[a-z,-]+\])?==(?P<version>\S+)", re.MULTILINE)


def entries(name: str) -> list[str]:
    """Return the logical lines of a lock file."""
    return file_of(name).read_text(encoding="utf-8").replace("\\\n", "").splitlines()


def pins(name: str) -> set[tuple[str, str]]:
    return {(pin["name"], pin["version"]) for pin in PIN.finditer("\n".join(entries(name)))}


@pytest.mark.parametrize("name", ALL)
def test_every_line_is_a_version_with_hashes(name: str) -> None:
    pattern = re.compile(r"[^\s;]+==[^\s;]+ (; \S.*? )?(\s*--hash=sha256:[0-9a-f]{64})+")
    wrong = [line for line in entries(name) if not pattern.fullmatch(line)]
    assert not wrong
    assert entries(name)


@pytest.mark.parametrize("name", ALL)
def test_a_lock_has_what_its_source_names(name: str) -> None:
    source = file_of(name, "in").read_text(encoding="utf-8")
    named = {each.lower() for each in re.findall(r"^[A-Za-z0-9-]+(?=[=<>\[\n])", source, re.M)}
    assert named <= {each for each, _ in pins(name)} | {"prompt_toolkit", "types-pyyaml"}


@pytest.mark.parametrize(("name", "other"), FOLLOWED.items())
def test_two_locks_of_one_environment_agree(name: str, other: str) -> None:
    common = {each for each, _ in pins(name)} & {each for each, _ in pins(other)}
    assert common
    assert {pin for pin in pins(name) if pin[0] in common} <= pins(other)


def test_every_installation_compares_hashes() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (options,) = re.findall(r"^LOCKED := (.*)$", makefile, re.MULTILINE)
    assert options == "--require-hashes --only-binary :all:"
    commands = [line for line in makefile.splitlines() if "-r requirements/" in line]
    assert len(commands) == len(ALL) + 2  # both benchmarks; the wheels for tests and for Dynamo
    assert all("$(LOCKED)" in line for line in commands)
    (own,) = [line for line in makefile.splitlines() if " -e ." in line]
    assert "--no-deps --no-build-isolation" in own, "the build takes the locked setuptools"
    assert "setuptools" in {each for each, _ in pins("serve")}


@pytest.fixture
def written(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "sbom.json"
    command = [sys.executable, "-I", "-S", str(ROOT / "tools/sbom.py"), str(file)]
    subprocess.run(command, check=True)
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def test_the_bill_of_materials_lists_every_lock(written: dict[str, Any]) -> None:
    """Required members: https://cyclonedx.org/docs/1.6/json/."""
    assert (written["bomFormat"], written["specVersion"], written["version"]) == (
        *("CycloneDX", "1.6"),
        1,
    )
    assert re.fullmatch(
        r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", written["serialNumber"]
    )
    parts = written["components"]
    assert {(part["name"], part["version"]) for part in parts} == set().union(*map(pins, ALL))
    references = [part["bom-ref"] for part in parts]
    assert len(set(references)) == len(references)
    digests = [
        digest["content"] for part in parts for digest in part["externalReferences"][0]["hashes"]
    ]
    locks = "".join(file_of(name).read_text(encoding="utf-8") for name in ALL)
    assert set(digests) == set(re.findall(r"sha256:([0-9a-f]{64})", locks))
    assert all(part["type"] == "library" and part["properties"] for part in parts)
    assert {f"requirements/{name}.txt" for name in ALL} == set(LOCKS)


def test_a_lock_that_is_not_understood_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dev: 'x>=1' is neither a pin nor a hash"):
        bill({"dev": "x>=1\n"})
