"""Options, signals and output shared by the commands; foreign text cannot control the terminal."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from trtllm_truss.errors import SettingsError
from trtllm_truss.literals import one_line, printable

_LAST_PORT = 65535
_PORT_DIGITS = 5


def echo(*lines: str) -> None:
    """Write whole lines to standard error, from any thread; drop them once it is closed.

    print() writes the text and the newline separately, so output of threads would interleave.
    """
    for line in lines:
        with suppress(OSError):
            sys.stderr.write(f"{one_line(line)}\n")
            sys.stderr.flush()


def report(*lines: str) -> None:
    """Write whole lines to standard output."""
    for line in lines:
        sys.stdout.write(f"{one_line(line)}\n")
    sys.stdout.flush()


def write(text: str) -> None:
    """Write a text to standard output: exactly, unless it goes to a terminal."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def add_truss_options(parser: argparse.ArgumentParser, *, config: bool = True) -> None:
    """Add `--truss` and, on request, `--config`."""
    parser.add_argument(
        "--truss", type=Path, default=Path(), metavar="DIR", help="the Truss (default: .)"
    )
    if config:
        parser.add_argument(
            "--config", type=Path, metavar="FILE", help="replaces the Truss's config.yaml"
        )


def port(text: str) -> int:
    """Return a port's number; used as the `type` of an option."""
    if text.isdecimal() and len(text) <= _PORT_DIGITS and 0 < int(text) <= _LAST_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port; it must be 1 to {_LAST_PORT}")


def require_empty(output: Path) -> None:
    """Check that `--output` is a new or empty folder.

    Raises:
        SettingsError: it is a file or contains files.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise SettingsError(f"--output {output} is not empty; name a new folder.")


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Report `--output` in the error if the block cannot write it.

    Raises:
        SettingsError: the block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"--output {output} cannot be written ({error.strerror or error}); choose a "
            "place where you may write."
        ) from error


def log_to_stderr() -> None:
    """Log to standard error, with the time of each line."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    from trtllm_truss.observability.log_lines import escape_log_lines  # imports asyncio: 30 ms

    escape_log_lines()


def draining(number: int, limit_s: float) -> str:
    """Return the message that a server prints at the first signal."""
    name = signal.Signals(number).name
    return f"{name}: waiting up to {limit_s:g} s for running requests; a second signal cuts them"


@contextmanager
def unwinding() -> Iterator[None]:
    """Make SIGTERM raise `SystemExit` in the block, so that its clean-up runs.

    A second SIGTERM is ignored.
    """
    before = signal.signal(signal.SIGTERM, _unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Handle SIGTERM and SIGINT after the block instead of during it.

    Signals reach Python in the main thread; on other threads the block runs unchanged.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
        if callable(signal.getsignal(number))  # neither ignored nor the default
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in received:
            signal.raise_signal(each)


def _unwind(number: int, frame: FrameType | None) -> None:
    signal.signal(number, lambda *_: None)
    raise SystemExit(128 + number)
