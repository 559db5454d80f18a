"""Addresses and interfaces, on loopback."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from trtllm_truss.errors import SettingsError
from trtllm_truss.hosts import channel
from trtllm_truss.hosts.channel import address_towards, interface_of, resolve


def test_the_way_to_a_host() -> None:
    assert resolve("127.0.0.1") == "127.0.0.1"
    assert address_towards("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None


def test_a_name_may_take_a_while_to_come_up(monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = socket.getaddrinfo, [socket.gaierror(-2, "Name or service not known")] * 2

    def getaddrinfo(name: str, *arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return real("127.0.0.1", *arguments)

    monkeypatch.setattr(channel, "_RETRY_S", 0)
    monkeypatch.setattr(channel.socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(SettingsError, match="has no IPv4 address here"):
        resolve("group-0.group")
    assert resolve("group-0.group", within_s=60) == "127.0.0.1"
