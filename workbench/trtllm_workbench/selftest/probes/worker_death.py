"""Kill a spawned worker, and tell what became of its parent: this process.

Runs as `python -c`, as `spawn` does, with the seconds that the parent waits. No line about the
parent means that MPI has ended it.
"""

import json
import os
import sys
import threading
from concurrent.futures import TimeoutError as OutOfTime

from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor

PATIENCE_S = float(sys.argv[1])
KILL = "__import__('os').kill(__import__('os').getpid(), 9)"


def end_at_once(failed: threading.ExceptHookArgs) -> None:
    """End the process, which would wait for ever for workers that could not be spawned."""
    sys.excepthook(failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback)
    sys.stderr.flush()
    os._exit(1)


threading.excepthook = end_at_once  # mpi4py spawns in a thread
pool = MPIPoolExecutor(max_workers=1, path=sys.path)
pool.submit(os.getpid).result()
sys.stdout.write(f"{MPI.Get_library_version()}\nspawned\n")
sys.stdout.flush()
try:
    pool.submit(eval, KILL).result(PATIENCE_S)
    parent = "is told"
except OutOfTime:
    parent = "waits"
except Exception:  # noqa: BLE001 - any tells
    parent = "is told"
sys.stdout.write(f"\n{json.dumps({'parent': parent})}\n")
sys.stdout.flush()
os._exit(0)
