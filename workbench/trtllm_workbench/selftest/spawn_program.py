"""Spawn workers as TensorRT-LLM's LLM API does, and describe them as one line of JSON.

Runs as `python -c`: the workers would import a main file. Source: ``MpiPoolSession`` in
tensorrt_llm/llmapi/mpi_session.py of 1.2.1. Each worker is asked for its core set and for
``MPI_UNIVERSE_SIZE``, which only a spawned process knows: the slots of this machine.
"""

import json
import os
import sys

import mpi4py
from mpi4py import MPI
from mpi4py.futures import MPIPoolExecutor

SLOTS = (
    "__import__('mpi4py.MPI').MPI.COMM_WORLD.Get_attr(__import__('mpi4py.MPI').MPI.UNIVERSE_SIZE)"
)

workers = int(sys.argv[1])
with MPIPoolExecutor(max_workers=workers, path=sys.path) as pool:
    cores = [pool.submit(os.sched_getaffinity, 0) for _ in range(workers)]
    slots = pool.submit(eval, SLOTS)
    found = {
        "mpi": MPI.Get_library_version(),
        "mpi4py": mpi4py.__version__,
        "slots": slots.result(),
        "cores": [len(future.result()) for future in cores],
    }
sys.stdout.write(f"\n{json.dumps(found)}\n")
sys.stdout.flush()
