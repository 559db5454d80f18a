"""A client that requests a few tokens in a loop.

`python -m benchmarks.load.neighbour PORT PATH` writes a line per answer: start and end in seconds
of the monotonic clock, and the status.
"""

from __future__ import annotations

import http.client
import json
import sys
import time

_BODY = json.dumps({"prompt": "The sky is", "max_tokens": 4, "top_k": 1}).encode()
_PAUSE_S = 0.02


def main() -> None:
    """Send requests until the pipe closes."""
    port, path = int(sys.argv[1]), sys.argv[2]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    while True:
        start = time.monotonic()
        connection.request("POST", path, _BODY)
        answer = connection.getresponse()
        answer.read()
        print(start, time.monotonic(), answer.status, flush=True)
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
