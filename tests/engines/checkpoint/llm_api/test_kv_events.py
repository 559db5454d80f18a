"""Events of the KV cache, from the library to the Truss's socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.checkpoint.llm_api.conftest import StartEngine
from tests.engines.checkpoint.llm_api.test_engine import answer
from tests.fakes.tensorrt_llm import VERSIONS
from tests.support.waiting import PATIENCE_S

RELEASES = VERSIONS
"""Each has its own way to the events."""

pytestmark = pytest.mark.usefixtures("counting")
BLOCK = 4
ONE, OTHER = [*range(100, 111)], [*range(200, 211)]


class Reader:
    """The Truss's end of the socket."""

    def __init__(self, address: Path) -> None:
        self.address = address
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(address))
        self._listener.listen()
        self._listener.settimeout(PATIENCE_S)
        self._lines: Any = None

    def next(self) -> dict[str, Any]:
        if self._lines is None:
            connection, _ = self._listener.accept()
            connection.settimeout(PATIENCE_S)
            self._lines = connection.makefile()
            connection.close()
        event: dict[str, Any] = json.loads(self._lines.readline())
        return event

    def next_of(self, kind: str) -> dict[str, Any]:
        return next(event for event in iter(self.next, None) if kind in event)

    def close(self) -> None:
        self._listener.close()
        if self._lines is not None:
            self._lines.close()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path / "events")
    yield reader
    reader.close()


def reporting(address: Path, **changes: Any) -> dict[str, Any]:
    """Return the settings of an engine that sends its events, and makes no requests itself."""
    cache = {"tokens_per_block": BLOCK, "event_buffer_max_size": 64, **changes}
    llm_args = {"kv_cache_config": cache}
    return {"kv_events": address, "llm_args": llm_args, "canary_interval_s": 3600}


def tokens_of(event: dict[str, Any]) -> list[list[int]]:
    return [tokens for _, tokens in event["stored"][1]]


def test_stored_and_removed_blocks_are_reported(start_engine: StartEngine, reader: Reader) -> None:
    engine = start_engine(**reporting(reader.address, max_tokens=4 * BLOCK))
    assert len(answer(engine, 2, prompt=ONE)) == 2
    first = reader.next_of("stored")
    assert first["stored"][0] is None
    assert tokens_of(first)[:2] == [ONE[:4], ONE[4:8]]
    hashes = [block_hash for block_hash, _ in first["stored"][1]]
    answer(engine, 2, prompt=OTHER)
    assert tokens_of(second := reader.next_of("stored"))[0] == OTHER[:4]
    gone = reader.next_of("removed")
    assert gone["removed"] == hashes[::-1]
    assert [first["window"], second["id"], gone["id"]] == [4096, first["id"] + 1, first["id"] + 2]


def test_a_reused_beginning_is_not_reported_again(
    start_engine: StartEngine, reader: Reader
) -> None:
    engine = start_engine(**reporting(reader.address))
    answer(engine, 2, prompt=ONE)
    first = reader.next_of("stored")
    answer(engine, 2, prompt=[*ONE[:8], 7, 8, 9, 10])
    second = reader.next_of("stored")
    assert second["stored"][0] == first["stored"][1][1][0]
    assert tokens_of(second)[0] == [7, 8, 9, 10]


def test_a_full_buffer_leaves_a_gap(start_engine: StartEngine, reader: Reader) -> None:
    engine = start_engine(
        **reporting(reader.address, max_tokens=4 * BLOCK, event_buffer_max_size=1)
    )
    answer(engine, 2, prompt=ONE)
    before = reader.next_of("stored")["id"]
    answer(engine, 2, prompt=OTHER)
    assert reader.next_of("removed")["id"] == before + 2


def test_an_engine_goes_on_without_a_reader(start_engine: StartEngine, tmp_path: Path) -> None:
    engine = start_engine(**reporting(tmp_path / "nobody"))
    assert len(answer(engine, 2, prompt=ONE)) == 2
