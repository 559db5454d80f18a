"""The processes of the workers, and who starts them.

Sources: `MpiPoolSession` in tensorrt_llm/llmapi/mpi_session.py of 1.2.1 (MPI_Comm_spawn, with the
parent's `sys.path` and environment), and `GenerationExecutor.create` in executor/executor.py, which
spawns a worker for one GPU too.
"""

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import Future

SESSION = "TLLM_FAKE_SESSION"
"""`process` starts a worker without MPI, for a test's own process: Open MPI 5 ends the parent of a
worker that dies."""


def new_session(n_workers):
    # Under NVIDIA's launcher the ranks exist; this worker stands for theirs.
    is_launched = os.environ.get("TLLM_SPAWN_PROXY_PROCESS") == "1"
    if is_launched or os.environ.get(SESSION) == "process":
        return ProcessSession()
    return MpiPoolSession(n_workers)


class MpiPoolSession:
    def __init__(self, n_workers):
        os.environ["MPI4PY_LIBMPI"] = os.environ["TLLM_FAKE_LIBMPI"]  # else it takes Python's
        from mpi4py.futures import MPIPoolExecutor

        self._n_workers = n_workers
        self._pool = MPIPoolExecutor(max_workers=n_workers, path=sys.path)

    def submit(self, task, *args):
        return [self._pool.submit(task, *args) for _ in range(self._n_workers)]

    def shutdown(self):
        self._pool.shutdown(wait=True)


class ProcessSession:
    """A single worker, whose future never finishes if it dies, as under Open MPI 4.

    After an error of its task the process lives on, as one of MPI's pool.
    """

    _program = """
import os, pickle, sys
task, args = pickle.load(sys.stdin.buffer)
error = None
try:
    task(*args)
except Exception as caught:
    error = caught
with os.fdopen(int(sys.argv[2]), "wb") as results:
    results.write(pickle.dumps(error))
sys.stdin.buffer.read()
"""

    def submit(self, task, *args):
        results, written = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", self._program, "mpi4py.futures.server", str(written)],
            stdin=subprocess.PIPE,
            pass_fds=[written],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        os.close(written)
        process.stdin.write(pickle.dumps((task, args)))
        process.stdin.flush()
        future = Future()

        def wait():
            with os.fdopen(results, "rb") as file:
                outcome = file.read()
            error = pickle.loads(outcome) if outcome else None
            if error is not None:
                future.set_exception(error)
            elif outcome:
                process.stdin.close()
            process.wait()
            process.stdin.close()
            if outcome and error is None:
                future.set_result(None)

        threading.Thread(target=wait, daemon=True).start()
        return [future]

    def shutdown(self): ...
