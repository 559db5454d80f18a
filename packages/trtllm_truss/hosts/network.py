"""Addresses, interfaces and sockets of this host, and what all hosts of a group must share."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtllm_truss import __version__
from trtllm_truss.artifacts.listing import Listing
from trtllm_truss.artifacts.open_repository import is_remote
from trtllm_truss.engines.diagnostics import CONFIG_FILE
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.manifest import MANIFEST_FILE
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.model import Settings

_SIOCGIFADDR = 0x8915
_RETRY_S = 0.5
_REQUEST = struct.Struct("256s")


def resolve(name: str, within_s: float = 0) -> str:
    """Return the first IPv4 address of a host.

    Args:
        name: a name or an address.
        within_s: time that a name may take to come up, as that of a new pod does.

    Raises:
        SettingsError: the name has none.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            return str(found[0][4][0])
        except OSError as error:
            if time.monotonic() >= deadline:
                raise SettingsError(
                    f"the host {name!r} of the group has no IPv4 address here ({error.strerror}); "
                    "check nodes and this network's DNS."
                ) from error
            time.sleep(_RETRY_S)


def interface_of(address: str) -> str | None:
    """Return the interface with an IPv4 address; None if this host does not have it."""
    return next((name for name, own in _interfaces() if own == address), None)


def address_towards(host: str) -> str:
    """Return this host's address on the way to another one; send nothing.

    Raises:
        OSError: there is no way.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        any_socket.connect((host, 9))
        return str(any_socket.getsockname()[0])


def _interfaces() -> Iterator[tuple[str, str]]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = _REQUEST.pack(name.encode())
            try:
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
            except OSError:  # it has no IPv4 address
                continue
            yield name, socket.inet_ntoa(answer[20:24])


def listen_in(folder: Path, name: str) -> socket.socket:
    """Open a Unix socket in a folder, however long its path is.

    Raises:
        OSError: the folder cannot hold it.
    """
    listener = socket.socket(socket.AF_UNIX)
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:  # the address of a socket has at most 108 bytes, a folder's path may have more
        listener.bind(f"/proc/self/fd/{place}/{name}")
        listener.listen()
    except OSError:
        listener.close()
        raise
    finally:
        os.close(place)
    return listener


def shut(connection: socket.socket | None) -> None:
    """Close a socket; a thread that waits for it wakes up."""
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


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
