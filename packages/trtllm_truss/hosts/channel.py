"""Addresses and sockets of this host, and an authenticated connection between leader and member.

All hosts of a group must share some properties. Leader and member prove that they hold the group's
key, over two fresh random numbers::

    member → leader   magic, 32 random bytes
    leader → member   magic, 32 random bytes
    member → leader   HMAC-SHA256(key, "member" + both)
    leader → member   HMAC-SHA256(key, "leader" + both); zeros to a wrong proof

The member is first, so that nothing that depends on the key goes to a peer that has not proved to
hold it: anyone may connect to the leader, but a member connects only to the leader's address. The
magic ends in the protocol's version; a peer of another version gets the magic alone.

Each direction then has a key of its own, derived from the group's key and both random numbers. A
frame is the length of its body in 4 bytes, the body, and an HMAC-SHA256 over the frame's number,
the length and the body. A frame of another connection, direction or place in the order therefore
fails. Bodies are JSON; they are authenticated, not encrypted, and hold no secret.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import select
import socket
import struct
import threading
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


MAX_BODY_BYTES = 1 << 16
HANDSHAKE_LIMIT_S = 3.0
_PROTOCOL = b"trtllm-truss group "
_VERSION = b"2"
_MAGIC = _PROTOCOL + _VERSION + b"\n"
_DIGEST = "sha256"
_DIGEST_BYTES = 32
_NONCE_BYTES = 32
_SEND_LIMIT_S = 2.0
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!Q")
_LEADER, _MEMBER = b"leader", b"member"


class ConnectionLost(Exception):
    """The peer closed the connection, cannot be reached, or is silent; the text says which."""


class NotAuthentic(Exception):
    """The peer lacks the key, or a frame was forged, replayed, truncated or oversized."""


class OtherVersion(NotAuthentic):
    """The peer speaks another version of this protocol."""


class Channel:
    """One connection after its handshake. `send` may be called from any thread.

    Args:
        connection: a connected TCP socket; the channel owns it.
        nonces: the random numbers of member and leader.
    """

    def __init__(
        self, connection: socket.socket, key: bytes, nonces: bytes, *, is_leader: bool
    ) -> None:
        self._socket = connection
        self._socket.settimeout(_SEND_LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        of_leader, of_member = (_mac(key, b"from " + side, nonces) for side in (_LEADER, _MEMBER))
        self._send_key, self._receive_key = (
            (of_leader, of_member) if is_leader else (of_member, of_leader)
        )
        self._sent = self._received = 0
        self._buffer = bytearray()
        self._heard_at = time.monotonic()
        self._lock = threading.Lock()

    @property
    def silent_for_s(self) -> float:
        """Seconds since the last frame; 0 while bytes of the peer wait for `receive`.

        A thread that waited for Python's lock since its last `receive` has not seen them.
        """
        silent_s = time.monotonic() - self._heard_at
        return 0.0 if self._poll.poll(0) else silent_s

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message.

        Raises:
            ConnectionLost: the peer does not take it.
        """
        body = json.dumps(message).encode()
        assert len(body) <= MAX_BODY_BYTES
        with self._lock:
            frame = _LENGTH.pack(len(body)) + body
            tag = _mac(self._send_key, _NUMBER.pack(self._sent), frame)
            self._sent += 1
            try:
                self._socket.sendall(frame + tag)
            except OSError as error:
                raise ConnectionLost(_describe(error)) from error

    def receive(self, within_s: float) -> dict[str, Any] | None:
        """Return the next message; None if none is complete in time.

        Raises:
            ConnectionLost: the peer closed the connection.
            NotAuthentic: the frame is not the peer's next one.
        """
        deadline = time.monotonic() + within_s
        while (message := self._next()) is None:
            left_s = max(0.0, deadline - time.monotonic())
            if not self._poll.poll(left_s * 1000):
                return None
            try:
                data = self._socket.recv(MAX_BODY_BYTES)
            except OSError as error:
                raise ConnectionLost(_describe(error)) from error
            if not data:
                raise ConnectionLost("it closed the connection")
            self._buffer += data
        return message

    def close(self) -> None:
        """Close the connection; a thread in `receive` gets ConnectionLost."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _next(self) -> dict[str, Any] | None:
        """Take one frame off the buffer and verify it before its body is parsed."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_BODY_BYTES:
            raise NotAuthentic(f"a frame of {length} bytes; at most {MAX_BODY_BYTES} are accepted")
        end = _LENGTH.size + length
        if len(self._buffer) < end + _DIGEST_BYTES:
            return None
        frame, tag = bytes(self._buffer[:end]), bytes(self._buffer[end : end + _DIGEST_BYTES])
        expected = _mac(self._receive_key, _NUMBER.pack(self._received), frame)
        if not hmac.compare_digest(tag, expected):
            raise NotAuthentic("a frame that the peer did not send, or not in this place")
        del self._buffer[: end + _DIGEST_BYTES]
        self._received += 1
        self._heard_at = time.monotonic()
        try:
            message = json.loads(frame[_LENGTH.size :])
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise NotAuthentic("a message that is not a JSON object")
        return message


def accept(connection: socket.socket, key: bytes) -> Channel:
    """Authenticate a member. Nothing is sent to a peer that does not begin as one.

    Raises:
        ConnectionLost: the peer left, or was too slow.
        OtherVersion: it is a member of another version.
        NotAuthentic: it does not hold the key.
    """
    deadline = time.monotonic() + HANDSHAKE_LIMIT_S
    hello = _read(connection, len(_MAGIC) + _NONCE_BYTES, deadline)
    try:
        _check_magic(hello)
    except OtherVersion:
        _write(connection, _MAGIC)
        raise
    own = secrets.token_bytes(_NONCE_BYTES)
    nonces = hello[len(_MAGIC) :] + own
    _write(connection, _MAGIC + own)
    proof = _read(connection, _DIGEST_BYTES, deadline)
    if not hmac.compare_digest(proof, _mac(key, _MEMBER, nonces)):
        _write(connection, bytes(_DIGEST_BYTES))
        raise NotAuthentic("its group_key is another one")
    _write(connection, _mac(key, _LEADER, nonces))
    return Channel(connection, key, nonces, is_leader=True)


def connect(address: tuple[str, int], key: bytes) -> Channel:
    """Connect to a leader, and authenticate this member, then the leader.

    Raises:
        ConnectionLost: nothing listens there, or the leader left or was too slow.
        OtherVersion: it is a leader of another version.
        NotAuthentic: the peer does not hold the key.
    """
    try:
        connection = socket.create_connection(address, HANDSHAKE_LIMIT_S)
    except OSError as error:
        raise ConnectionLost(_describe(error)) from error
    try:
        deadline = time.monotonic() + HANDSHAKE_LIMIT_S
        own = secrets.token_bytes(_NONCE_BYTES)
        _write(connection, _MAGIC + own)
        try:
            magic = _read(connection, len(_MAGIC), deadline)
        except ConnectionLost as error:  # version 1 leaves without a word
            raise ConnectionLost(
                f"{error}; if this lasts, run the same image on every host"
            ) from error
        _check_magic(magic)
        nonces = own + _read(connection, _NONCE_BYTES, deadline)
        _write(connection, _mac(key, _MEMBER, nonces))
        proof = _read(connection, _DIGEST_BYTES, deadline)
        if not hmac.compare_digest(proof, _mac(key, _LEADER, nonces)):
            raise NotAuthentic("its group_key is another one")
        return Channel(connection, key, nonces, is_leader=False)
    except BaseException:
        connection.close()
        raise


def _check_magic(hello: bytes) -> None:
    if hello.startswith(_MAGIC):
        return
    if not hello.startswith(_PROTOCOL):
        raise NotAuthentic("it does not speak this protocol")
    version = hello[len(_PROTOCOL) : len(_MAGIC)].strip().decode("ascii", "replace")
    raise OtherVersion(
        f"it speaks version {version!r} of the group's protocol and this host version "
        f"{_VERSION.decode()}; run the same image on every host"
    )


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), _DIGEST)


def _read(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Read exactly `count` bytes until a time that a slow sender cannot move."""
    data = b""
    while len(data) < count:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise ConnectionLost("its handshake was too slow")
        try:
            connection.settimeout(left_s)
            part = connection.recv(count - len(data))
        except OSError as error:
            raise ConnectionLost(_describe(error)) from error
        if not part:
            raise ConnectionLost("it closed the connection during the handshake")
        data += part
    return data


def _write(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError as error:
        raise ConnectionLost(_describe(error)) from error


def _describe(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
