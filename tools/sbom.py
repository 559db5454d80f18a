"""Write the lock files as a bill of materials: CycloneDX 1.6, JSON.

Usage: `python -m tools.sbom FILE`. Format: https://cyclonedx.org/docs/1.6/json/. The same lock
files give the same bytes. Needs only the standard library.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKS = tuple(
    f"requirements/{name}.txt"
    for name in (
        *(
            "pip",
            "serve",
            "dev",
            "wheels",
            "reference",
            "clients",
            "aider",
            "dynamo",
            "frontend",
            "fleet",
            "bench",
        ),
        "peers",
    )
)
_PIN = re.compile(r"([a-z0-9-]+)(?:\[[a-z0-9,-]+\])?==([^ ]+)(?: ; (.*?))? \\")
_HASH = re.compile(r" +--hash=sha256:([0-9a-f]{64})(?: \\)?")
_PROJECT = "trtllm-truss"


def bill(locks: dict[str, str]) -> dict[str, Any]:
    """Return the bill of materials of lock files, by their names.

    Raises:
        ValueError: a line is neither a pin nor a hash.
    """
    parts: dict[tuple[str, str], dict[str, Any]] = {}
    for lock, text in locks.items():
        part: dict[str, Any] = {}
        for line in text.splitlines():
            if pin := _PIN.fullmatch(line):
                name, version, marker = pin.groups()
                part = parts.setdefault((name, version), _component(name, version))
                _add(part["properties"], {"name": f"{_PROJECT}:lock", "value": lock})
                if marker:
                    _add(part["properties"], {"name": f"{_PROJECT}:marker", "value": marker})
            elif (hash_ := _HASH.fullmatch(line)) and part:
                digest = {"alg": "SHA-256", "content": hash_[1]}
                _add(part["externalReferences"][0]["hashes"], digest)
            else:
                raise ValueError(f"{lock}: {line!r} is neither a pin nor a hash")
    components = [parts[key] for key in sorted(parts)]
    seed = json.dumps([_version(), components])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, seed)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": _PROJECT,
                "name": _PROJECT,
                "version": _version(),
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
    }


def _component(name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    files = {
        "type": "distribution",
        "url": f"https://pypi.org/project/{name}/{version}/#files",
        "hashes": [],
    }
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "externalReferences": [files],
        "properties": [],
    }


def _add(values: list[Any], value: Any) -> None:
    if value not in values:
        values.append(value)


def _version() -> str:
    text = (ROOT / "packages/trtllm_truss/__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return str(version)


def main() -> None:
    """Write the file."""
    locks = {name: (ROOT / name).read_text(encoding="utf-8") for name in LOCKS}
    text = json.dumps(bill(locks), indent=1) + "\n"
    Path(sys.argv[1]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
