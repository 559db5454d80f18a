"""Log lines of an event loop in batches, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest
from tests.support.virtual_time import virtually

from trtllm_truss.observability.log_lines import BatchHandler, batch_log_lines

request_id = ContextVar("request_id", default="none")


class Stream:
    """Records each write."""

    def __init__(self) -> None:
        self.writes: list[str] = []

    def write(self, text: str) -> None:
        self.writes.append(text)

    def flush(self) -> None: ...


class Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        if record.msg == "bad":
            raise ValueError("a bad record")
        return f"{super().format(record)} {request_id.get()}"


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def logger(stream: Stream) -> Iterator[logging.Logger]:
    logger = logging.getLogger("batched")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Formatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    batch_log_lines()
    yield logger
    logger.handlers.clear()


@virtually
async def test_lines_of_20_ms_share_a_write(stream: Stream, logger: logging.Logger) -> None:
    for number in range(5):
        request_id.set(f"r{number}")
        logger.info("line %d", number)
        await asyncio.sleep(0.008)
    await asyncio.sleep(0.1)
    assert stream.writes == ["line 0 r0\nline 1 r1\nline 2 r2\n", "line 3 r3\nline 4 r4\n"]


@virtually
async def test_a_warning_is_written_at_once_after_the_waiting_lines(
    stream: Stream, logger: logging.Logger
) -> None:
    logger.info("first")
    logger.warning("second")
    assert stream.writes == ["first none\nsecond none\n"]
    await asyncio.sleep(1)
    assert len(stream.writes) == 1


@virtually
async def test_another_thread_writes_at_once(stream: Stream, logger: logging.Logger) -> None:
    logger.info("first")
    thread = threading.Thread(target=logger.info, args=["second"])
    thread.start()
    thread.join()
    assert stream.writes == ["first none\nsecond none\n"]


def test_without_an_event_loop_a_line_is_written_at_once(
    stream: Stream, logger: logging.Logger
) -> None:
    logger.info("line")
    assert stream.writes == ["line none\n"]


@virtually
async def test_a_line_that_cannot_be_formatted_costs_no_other(
    stream: Stream, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.info("first")
    logger.info("bad")
    logger.info("last")
    await asyncio.sleep(1)
    assert stream.writes == ["first none\nlast none\n"]
    assert "a bad record" in capsys.readouterr().err


def test_a_handler_of_several_loggers_is_replaced_once(logger: logging.Logger) -> None:
    first, other = logger.handlers[0], logging.getLogger("batched.too")
    shared = logging.StreamHandler()
    logger.addHandler(shared)
    other.addHandler(shared)
    batch_log_lines()
    batch_log_lines()
    assert logger.handlers == [first, *other.handlers]
    assert type(other.handlers[0]) is BatchHandler
    other.handlers.clear()


def test_waiting_lines_are_written_at_the_exit() -> None:
    program = """
import asyncio, logging
from trtllm_truss.observability.log_lines import batch_log_lines
logging.basicConfig(level=logging.INFO, format="%(message)s")
batch_log_lines()
async def main():
    logging.info("last words")
asyncio.run(main())
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stderr == "last words\n"
