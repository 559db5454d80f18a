"""Properties that all hosts of a group must share, and the comparison of two hosts."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_truss import __version__
from trtllm_truss.artifacts.listing import Listing
from trtllm_truss.artifacts.open_repository import is_remote
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.json_files import CONFIG_FILE
from trtllm_truss.engines.manifest import MANIFEST_FILE
from trtllm_truss.settings.model import Settings

_REPOSITORIES = ("engine_repository", "tokenizer_repository")
_VERSIONS = {
    "trtllm_truss": "trtllm-truss",
    "tensorrt_llm": "TensorRT-LLM",
    "mpi": "Open MPI",
}

_LONGEST_HOSTNAME = 255


def identity_of(
    settings: Settings,
    engine: Engine,
    listing: Listing,
    adapters: Mapping[str, Path],
    *,
    tensorrt_llm_version: str | None,
    mpi_version: str | None,
) -> dict[str, Any]:
    """Describe this host to the others, as JSON without a readable setting."""
    return {
        "trtllm_truss": __version__,
        "tensorrt_llm": tensorrt_llm_version or "not installed",
        "mpi": mpi_version or "unknown",
        "hostname": socket.gethostname(),
        "settings": {
            name: _digest(repr(value).encode())
            for name, value in settings
            if name not in _REPOSITORIES or (value is not None and is_remote(value))
        },
        "commit": listing.commit,
        "described": {
            name: _digest((engine.folder / name).read_bytes())
            for name in (CONFIG_FILE, MANIFEST_FILE)
            if (engine.folder / name).is_file()
        },
        "files": {
            file.path: f"{file.size} {file.digest.value if file.digest else ''}"
            for file in listing.files
            if file.path.endswith(engine.equal_files)
        },
        "folders": {
            **{name: str(folder) for name, folder in engine.equal_folders.items()},
            **{f"the adapter {name}": str(folder) for name, folder in adapters.items()},
        },
    }


def difference(leader: Mapping[str, Any], member: Mapping[str, Any]) -> str | None:
    """Return why a host cannot join, as a sentence with the remedy; None if it can.

    Args:
        leader: the leader's identity.
        member: the other host's, from the network: any JSON.
    """
    for key, name in _VERSIONS.items():
        if member.get(key) != leader[key]:
            return (
                f"{name} is {_shown(member.get(key))} here and {leader[key]} on the leader; run "
                "the same image on every host."
            )
    if problem := _hostname_problem(leader["hostname"], member.get("hostname")):
        return problem
    for key in _keys(leader["settings"], member.get("settings")):
        return f"model_metadata.{key} is not the leader's; use the same config.yaml on every host."
    for name in _keys(leader["described"], member.get("described")):
        return f"{name} of the engine is not the leader's; use the same engine on every host."
    if member.get("commit") != leader["commit"]:
        return (
            f"the engine's commit is {_shown(member.get('commit'))} here and {leader['commit']} on "
            "the leader; set engine_revision to one of them."
        )
    theirs = member.get("files")
    files = theirs if isinstance(theirs, dict) else {}
    for name in sorted(leader["files"].keys() & files.keys()):
        if leader["files"][name] != files[name]:
            return f"{name} of the engine is not the leader's; use the same engine on every host."
    theirs = member.get("folders")
    folders = theirs if isinstance(theirs, dict) else {}
    for name in _keys(leader["folders"], folders):
        return (
            f"{name} is in {_shown(folders.get(name))} here and in "
            f"{_shown(leader['folders'].get(name))} on the leader; the LLM API needs it at one "
            "path on every host (HF_HOME)."
        )
    return None


def _hostname_problem(leader: str, member: object) -> str | None:
    if not isinstance(member, str) or not 0 < len(member) <= _LONGEST_HOSTNAME:
        return (
            f"the hostname is {_shown(member)} here; it must be a text of at most "
            f"{_LONGEST_HOSTNAME} characters. Run the same image on every host."
        )
    if member == leader:
        return (
            f"the hostname is {leader}, the leader's; give every host a name of its own, by which "
            "MPI tells them apart."
        )
    return None


def _keys(leader: Mapping[str, Any], member: object) -> list[str]:
    """Return the keys whose values differ, or that one side lacks."""
    theirs = member if isinstance(member, dict) else {}
    names = sorted(leader.keys() | {name for name in theirs if isinstance(name, str)})
    return [name[:100] for name in names if leader.get(name) != theirs.get(name)]


def _shown(value: object) -> str:
    return repr(value)[:100] if value else "unknown"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
