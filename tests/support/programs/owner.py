"""Run a fake server until killed: `owner.py FORK|- MODE…`; print run id, prefix and pid.

`RUN_PREFIX` in its environment replaces the prefix of the run's names.
"""

import os
import sys
import threading
import time
from pathlib import Path

from trtllm_truss.triton.server import command as commands
from trtllm_truss.triton.server import process
from trtllm_truss.triton.server.process import ServerProcess

FAKE_TRITON = str(Path(__file__).parents[2] / "fakes/triton/program.py")


def command(launch):
    ports = (str(launch.ports.grpc), str(launch.ports.metrics))
    return [sys.executable, FAKE_TRITON, launch.run_id, *ports, launch.shm_prefix, *sys.argv[2:]]


commands.RUN_PREFIX = os.environ.get("RUN_PREFIX", commands.RUN_PREFIX)
process._ORPHAN_GRACE_S = 0.2
server = ServerProcess(command, os.environ)
thread = threading.Thread(target=server.start)  # ends early, as in Truss
thread.start()
thread.join()
server.wait_until_ready(120)  # above any wait on a busy machine
if sys.argv[1] == "FORK" and os.fork() == 0:  # keeps its parent's pipes open
    time.sleep(8)
    os._exit(0)
sys.stdout.write(f"{server.launch.run_id} {server.launch.shm_prefix} {server.pid}\n")
sys.stdout.flush()
time.sleep(600)
