"""Program that `mpirun` runs to start its daemon on another host, in place of ssh.

Called as ``python -I -S launch_agent.py HOST WORD…``; imports only the standard library. It hands
the words to the leader through the socket in this run's folder, and ends with the daemon's exit
status, or 1 if the host was lost.
"""

from __future__ import annotations

import json
import os
import socket
import sys

SOCKET_NAME = "agent"


def main(host: str, *words: str) -> int:
    os.chdir(os.environ["TMPDIR"])  # the socket's whole path may be too long for its address
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(SOCKET_NAME)
        connection.sendall(json.dumps({"host": host, "words": words}).encode() + b"\n")
        with connection.makefile() as answers:
            answer = answers.readline()
    return int(answer) if answer else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
