"""Write log lines in batches: a separate write doubles the cost of a line.

On a terminal, such as that of a container without JSON logs, foreign characters are escaped.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextvars import Context, ContextVar, copy_context
from copy import copy
from typing import Any, TextIO

from trtllm_truss.literals import one_line, printable

_DELAY_S = 0.02

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The platform's id of the request that a line belongs to."""

_STANDARD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})
_TIME = "%H:%M:%S"


class BatchHandler(logging.Handler):
    """Formats and writes the records that an event loop logs within 20 ms together.

    Warnings, errors and records from other threads are written at once, after the waiting ones.
    """

    def __init__(self, handler: logging.StreamHandler[TextIO]) -> None:
        super().__init__(handler.level)
        self.filters = handler.filters
        self._handler = handler
        self._waiting: list[tuple[Context, logging.LogRecord]] = []

    def emit(self, record: logging.LogRecord) -> None:
        # Truss's formatters read the platform's request id from the context.
        self._waiting.append((copy_context(), record))
        loop = _running_loop()
        if loop is None or record.levelno > logging.INFO:
            self.flush()
        elif len(self._waiting) == 1:
            loop.call_later(_DELAY_S, self.flush)

    def flush(self) -> None:
        """Write the waiting records; also called when the process exits."""
        self.acquire()
        try:
            waiting, self._waiting = self._waiting, []
            if waiting:
                lines = [context.run(self._line, record) for context, record in waiting]
                self._handler.stream.write("".join(lines))
                self._handler.flush()
        except Exception:  # noqa: BLE001 - as logging's own handlers do
            self.handleError(waiting[-1][1])
        finally:
            self.release()

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self._handler.format(record) + self._handler.terminator
        except Exception:  # noqa: BLE001
            self.handleError(record)
            return ""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def handler_lists() -> Iterator[list[logging.Handler]]:
    """Yield the handlers of each logger; a handler may be in several lists."""
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        yield getattr(logger, "handlers", [])


def batch_log_lines() -> None:
    """Batch the lines of all stream handlers; idempotent."""
    batches: dict[logging.Handler, logging.Handler] = {}
    for handlers in handler_lists():
        for place, handler in enumerate(handlers):
            if type(handler) is logging.StreamHandler:
                handlers[place] = batches.setdefault(handler, BatchHandler(handler))


class PrintableFormatter(logging.Formatter):
    """Escapes another formatter's output; only a traceback may have several lines.

    JSON passes through unchanged. Truss's text formatter decodes a request's path (truss 0.18,
    `templates/shared/log_config.py`), which may contain anything.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter

    def format(self, record: logging.LogRecord) -> str:
        text = self._formatter.format(record)
        if not record.exc_info or "\n" not in text:
            return one_line(text)
        record = copy(record)
        record.msg, record.args = one_line(record.getMessage()), ()
        return printable(self._formatter.format(record))


def escape_log_lines() -> None:
    """Escape the lines of all stream handlers; idempotent."""
    for handlers in handler_lists():
        for handler in handlers:
            formatter = handler.formatter or logging.Formatter()
            if type(handler) is logging.StreamHandler and type(formatter) is not PrintableFormatter:
                handler.setFormatter(PrintableFormatter(formatter))


class JsonFormatter(logging.Formatter):
    """Formats records as lines of JSON with the keys of Truss's server.

    Source: truss/templates/shared/log_config.py, 0.18.35.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "asctime": self.formatTime(record),
            "levelname": record.levelname,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exc_info"] = self.formatException(record.exc_info)
        if (request_id := REQUEST_ID.get()) is not None:
            line["request_id"] = request_id
        return json.dumps(line, default=str)


def set_up_logging() -> None:
    """Log to standard error, as JSON unless `DISABLE_JSON_LOGGING` is set, which Truss defines."""
    as_text = bool(os.environ.get("DISABLE_JSON_LOGGING"))
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s", _TIME)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter if as_text else JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    escape_log_lines()
