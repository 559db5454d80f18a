"""The channel between hosts: only its next authentic frame is accepted."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from tests.support.waiting import settles

from trtllm_truss.hosts import channel as channel_module
from trtllm_truss.hosts.channel import (
    MAX_BODY_BYTES,
    Channel,
    ConnectionLost,
    NotAuthentic,
    OtherVersion,
    accept,
    connect,
    shut,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
MAGIC = channel_module._MAGIC
PATIENCE_S = 30.0


class Wire:
    """A proxy on loopback that records and changes what a member sends."""

    def __init__(self, leader: tuple[str, int]) -> None:
        self.sent = b""
        self.change: Callable[[bytes], bytes] = lambda data: data
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._leader = leader
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        try:
            member, _ = self._listener.accept()
        except OSError:  # closed
            return
        with member, socket.create_connection(self._leader) as leader:
            back = threading.Thread(target=self._pump, args=(leader, member), daemon=True)
            back.start()
            with contextlib.suppress(OSError):
                while data := member.recv(1 << 16):
                    self.sent += data
                    leader.sendall(self.change(data))
            with contextlib.suppress(OSError):
                leader.shutdown(socket.SHUT_RDWR)
            back.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)

    def close(self) -> None:
        shut(self._listener)
        self._thread.join()


class Pair:
    """A listening leader, and the wire to it.

    Attributes:
        wire: the proxy that members connect to.
    """

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()
        self.wire = Wire(self.address)
        self._threads = ThreadPoolExecutor(2)
        self._ends: list[Channel] = []

    def accepted(self, key: bytes = KEY) -> Future[Channel]:
        def one() -> Channel:
            connection, _ = self.listener.accept()
            try:
                return self._kept(accept(connection, key))
            except BaseException:
                connection.close()
                raise

        return self._threads.submit(one)

    def connected(self, key: bytes = KEY) -> Channel:
        return self._kept(connect(self.wire.address, key))

    def both(self) -> tuple[Channel, Channel]:
        """Return the channel of the leader, and that of a member."""
        leader = self.accepted()
        member = self.connected()
        return leader.result(PATIENCE_S), member

    def close(self) -> None:
        for end in self._ends:
            end.close()
        self._threads.shutdown()
        self.listener.close()
        self.wire.close()

    def _kept(self, channel: Channel) -> Channel:
        self._ends.append(channel)
        return channel


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_messages_arrive_in_order_in_both_directions(pair: Pair) -> None:
    leader, member = pair.both()
    messages = [{"number": number, "text": "ü" * 1000 * number} for number in range(9)]
    for message in messages:
        leader.send(message)
        member.send(message)
    assert [member.receive(PATIENCE_S) for _ in messages] == messages
    assert [leader.receive(PATIENCE_S) for _ in messages] == messages
    assert leader.receive(0) is None


def test_what_waits_to_be_read_is_no_silence(pair: Pair) -> None:
    leader, member = pair.both()
    member.send({"type": "alive"})
    assert settles(lambda: leader.silent_for_s == 0)
    assert leader.receive(PATIENCE_S) == {"type": "alive"}
    assert leader.silent_for_s > 0


@pytest.mark.parametrize(("of_leader", "of_member"), [(OTHER_KEY, KEY), (KEY, OTHER_KEY)])
def test_another_key_is_refused_by_both(pair: Pair, of_leader: bytes, of_member: bytes) -> None:
    leader = pair.accepted(of_leader)
    with pytest.raises(NotAuthentic, match="group_key"):
        pair.connected(of_member)
    with pytest.raises((NotAuthentic, ConnectionLost)):
        leader.result(PATIENCE_S)


def test_a_recorded_connection_cannot_be_replayed(pair: Pair) -> None:
    leader, member = pair.both()
    member.send({"type": "hello"})
    assert leader.receive(PATIENCE_S) == {"type": "hello"}
    again = pair.accepted()
    with socket.create_connection(pair.address) as stranger:
        stranger.sendall(pair.wire.sent)
        with pytest.raises(NotAuthentic):
            again.result(PATIENCE_S)


def test_the_members_own_proof_is_none_of_a_leader(pair: Pair) -> None:
    """A stranger in the leader's place reflects what the member sends."""

    def reflect() -> None:
        connection, _ = pair.listener.accept()
        with connection:
            connection.sendall(connection.recv(len(MAGIC) + 32, socket.MSG_WAITALL))
            connection.sendall(connection.recv(32, socket.MSG_WAITALL))

    stranger = threading.Thread(target=reflect)
    stranger.start()
    with pytest.raises(NotAuthentic, match="group_key"):
        connect(pair.address, KEY)
    stranger.join()


def heard(pair: Pair, key: bytes, hello: bytes, proof: bytes = b"") -> bytes:
    """Return everything that a leader sends to a stranger."""
    leader = pair.accepted(key)
    with socket.create_connection(pair.address) as stranger:
        stranger.sendall(hello + bytes(32) + proof)
        stranger.shutdown(socket.SHUT_WR)
        answer = b""
        while data := stranger.recv(1 << 16):
            answer += data
    assert leader.exception(PATIENCE_S) is not None
    return answer


@pytest.mark.parametrize("proof", [b"", bytes(16), bytes(32), b"x" * 32])
def test_a_stranger_hears_nothing_that_depends_on_the_key(
    pair: Pair, proof: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module.secrets, "token_bytes", lambda count: b"r" * count)
    answers = [heard(pair, key, MAGIC, proof) for key in (KEY, OTHER_KEY)]
    assert answers[0] == answers[1]
    assert answers[0][: len(MAGIC) + 32] == MAGIC + b"r" * 32


def test_a_member_of_another_version_hears_this_one(pair: Pair) -> None:
    """Version 1 takes less than 64 bytes for a lost connection, and comes again."""
    leader = pair.accepted()
    with socket.create_connection(pair.address) as old:
        old.sendall(b"trtllm-truss group 1\n" + bytes(32))
        with pytest.raises(OtherVersion, match=r"version '1' .* this host version 2; run the same"):
            leader.result(PATIENCE_S)
        assert old.recv(64, socket.MSG_WAITALL) == MAGIC


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (b"", ConnectionLost, "closed the connection .* run the same image on every host"),
        (b"trtllm-truss group 3\n", OtherVersion, "version '3' .* this host version 2"),
        (b"HTTP/1.1 400 Bad Request\r\n", NotAuthentic, "does not speak this protocol"),
    ],
)
def test_a_leader_of_another_version_is_named(
    pair: Pair, answer: bytes, kind: type[Exception], words: str
) -> None:
    """Version 1 closes the connection without a word."""

    def refuse() -> None:
        connection, _ = pair.listener.accept()
        with connection:
            connection.recv(len(MAGIC) + 32, socket.MSG_WAITALL)
            connection.sendall(answer)

    other = threading.Thread(target=refuse)
    other.start()
    with pytest.raises(kind, match=words):
        connect(pair.address, KEY)
    other.join()


def receive_all(channel: Channel) -> None:
    while channel.receive(PATIENCE_S) is not None:
        continue


def flipped(data: bytes) -> bytes:
    return data[:20] + bytes([data[20] ^ 1]) + data[21:]


CHANGES: dict[str, tuple[Callable[[bytes], bytes], type[Exception]]] = {
    "repeated": (lambda data: data + data, NotAuthentic),
    "changed": (flipped, NotAuthentic),
    "oversized": (lambda data: (MAX_BODY_BYTES + 1).to_bytes(4, "big") + data, NotAuthentic),
    "from nowhere": (lambda _: bytes(36), NotAuthentic),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_frame_that_is_not_the_next_one_is_refused(pair: Pair, change: str) -> None:
    leader, member = pair.both()
    pair.wire.change, error = CHANGES[change]
    member.send({"type": "hello"})
    with pytest.raises(error):
        receive_all(leader)


def test_a_frame_of_the_other_direction_is_refused(pair: Pair) -> None:
    with socket.create_connection(pair.address) as mirror:
        connection, _ = pair.listener.accept()
        leader = Channel(connection, KEY, bytes(64), is_leader=True)
        leader.send({"type": "alive"})
        mirror.sendall(mirror.recv(1 << 16))
        with pytest.raises(NotAuthentic):
            leader.receive(PATIENCE_S)
        leader.close()


def test_a_truncated_frame_is_no_message(pair: Pair) -> None:
    leader, member = pair.both()
    pair.wire.change = lambda data: data[:-1]
    member.send({"type": "hello"})
    assert leader.receive(0.2) is None
    member.close()
    with pytest.raises(ConnectionLost, match="closed"):
        leader.receive(PATIENCE_S)


@pytest.mark.parametrize("text", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096])
def test_a_stranger_gets_no_answer(
    pair: Pair, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "HANDSHAKE_LIMIT_S", 0.2)
    leader = pair.accepted()
    with socket.create_connection(pair.address) as stranger:
        stranger.sendall(text)
        with pytest.raises((NotAuthentic, ConnectionLost)):
            leader.result(PATIENCE_S)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
