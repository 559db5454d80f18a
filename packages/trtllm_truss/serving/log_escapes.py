"""Log lines on a terminal, such as that of a container without JSON logs."""

from __future__ import annotations

import logging
from copy import copy

from trtllm_truss.printable import one_line, printable
from trtllm_truss.serving.log_batches import handler_lists


class PrintableFormatter(logging.Formatter):
    """Escapes what another formatter returns; only a traceback has several lines.

    JSON comes through unchanged. Truss's text formatter decodes the path of a request
    (truss 0.18, `templates/shared/log_config.py`), which may hold anything.
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
