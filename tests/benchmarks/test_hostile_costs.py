"""The targets of the benchmark `hostile`, and clients that leave."""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter

import pytest
from benchmarks.hostile.attacks import MOMENTS, Moment, leave
from benchmarks.hostile.costs import Cost

BODY = b"a" * 300_000


@pytest.mark.parametrize(
    ("figures", "shortfalls"),
    [
        ((500.0, 600.0, 100.0), []),
        ((501.0, 600.0, 100.0), ["wait +0.50 s"]),
        ((0.0, 900.0, -5.0), ["peak 900 MiB"]),
        ((2000.0, 0.0, 101.0), ["wait +2.00 s", "kept +101 MiB"]),
    ],
)
def test_a_cost_names_the_targets_missed(
    figures: tuple[float, float, float], shortfalls: list[str]
) -> None:
    assert Cost("a body", Counter(), *figures).shortfalls == shortfalls


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("seed", range(4))
def test_a_client_leaves_at_its_moment(moment: Moment, seed: int) -> None:
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    while part := connection.recv(1 << 16):
                        received.append(part)
                        if moment == "receiving" and sum(map(len, received)) > len(BODY):
                            connection.sendall(b"b" * 10_000)
                except ConnectionError:
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        leave(listener.getsockname()[1], "/route", BODY, moment, random.Random(seed))
        thread.join()
    request = b"".join(received)
    if moment == "sending":
        assert not request.endswith(b"\r\n\r\n" + BODY)
    else:
        assert request.startswith(b"POST /route HTTP/1.1\r\n")
    if moment == "receiving":
        assert request.endswith(b"\r\n\r\n" + BODY)
