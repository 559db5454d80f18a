"""A browser with the console's page open, as seen by the server.

`python -m benchmarks.load.page PORT` requests the figures every second over one connection, until
its input closes; then it writes the number of requests and the longest wait in seconds.
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import time

PERIOD_S = 1.0
"""As in `console/page/pulse.js`."""


def main() -> None:
    """Ask until the input closes."""
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
    pulses, longest_s = 0, 0.0
    while True:
        start = time.monotonic()
        connection.request("GET", "/pulse")
        pulse = json.loads(connection.getresponse().read())
        longest_s = max(longest_s, time.monotonic() - start)
        assert pulse["state"] == "ready", pulse
        pulses += 1
        if select.select([sys.stdin], [], [], PERIOD_S)[0]:
            break
    print(json.dumps([pulses, longest_s]))


if __name__ == "__main__":
    main()
