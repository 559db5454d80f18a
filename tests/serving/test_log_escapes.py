"""The log of Truss's own server without JSON, as `DISABLE_JSON_LOGGING` makes it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

from trtllm_truss.observability.log_lines import REQUEST_ID, JsonFormatter

PROGRAM = """
import logging, logging.config, sys
from truss.templates.shared import log_config
from trtllm_truss.observability.log_lines import batch_log_lines
from trtllm_truss.observability.log_lines import escape_log_lines

logging.config.dictConfig(log_config.make_log_config("INFO"))
escape_log_lines()
escape_log_lines()
batch_log_lines()
line = '%s - "%s %s HTTP/%s" %d'  # of uvicorn, protocols/http/h11_impl.py
path = "/%1b]0;PWN%07/%c2%9b%e2%80%ae%0aready"
logging.getLogger("uvicorn.access").info(line, "127.0.0.1:1", "GET", path, "1.1", 404)
logger = logging.getLogger("trtllm_truss")
logger.warning("refused: %s", "\\x1b[2J\\nready")
try:
    raise ValueError("\\x1b[2J")
except ValueError:
    logger.exception("unhandled %s", "\\x1b\\nready")
"""


def logged(**environment: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
        check=True,
    )
    return ran.stdout.decode().removesuffix("\n").split("\n")


def test_no_line_acts_on_a_terminal() -> None:
    access, refusal, unhandled, *trace = logged(DISABLE_JSON_LOGGING="1")
    assert access.endswith("GET /␛]0;PWN␇/\\x9b\\u202e␊ready HTTP/1.1 404")
    assert refusal.endswith("refused: ␛[2J␊ready")
    assert unhandled.endswith("unhandled ␛␊ready")
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == "ValueError: ␛[2J"


def test_json_is_unchanged() -> None:
    access, refusal, unhandled = logged(DISABLE_JSON_LOGGING="")
    assert r"/\u001b]0;PWN\u0007/\u009b\u202e\nready HTTP/1.1 404" in access
    assert r"refused: \u001b[2J\nready" in refusal
    assert r"unhandled \u001b\nready" in unhandled


def test_our_own_servers_lines_are_json_with_the_platforms_id() -> None:
    """As Truss's: the keys by which Baseten and `serve` read a line."""
    record = logging.makeLogRecord(
        {"levelname": "WARNING", "msg": "%s left", "args": ("one",), "reason": "stop"}
    )
    token = REQUEST_ID.set("id-1")
    try:
        try:
            raise ValueError("broken")
        except ValueError:
            record.exc_info = sys.exc_info()
        line = json.loads(JsonFormatter().format(record))
    finally:
        REQUEST_ID.reset(token)
    assert (line["levelname"], line["message"]) == ("WARNING", "one left")
    assert (line["request_id"], line["reason"]) == ("id-1", "stop")
    assert line["exc_info"].endswith("ValueError: broken")
    assert "request_id" not in json.loads(JsonFormatter().format(logging.makeLogRecord({})))
