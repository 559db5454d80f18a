"""Addresses, interfaces and sockets of this host."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trtllm_truss.errors import SettingsError

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
