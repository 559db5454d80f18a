"""Run a program as a rank that calls `MPI_Finalize` at its end, which waits for the other ranks.

TensorRT-LLM registers it with `atexit` in the process of `tritonserver`, so a rank that cannot load
its engine waits for ranks that wait for it in a collective. Source: `initialize` of
`cpp/tensorrt_llm/runtime/utils/mpiUtils.cpp` in NVIDIA/TensorRT-LLM (0caf05f7, near 1.1).
"""

from __future__ import annotations

import ctypes
import subprocess
import sys

if __name__ == "__main__":
    mpi = ctypes.CDLL(f"{sys.prefix}/lib/libmpi.so.40", ctypes.RTLD_GLOBAL)
    mpi.MPI_Init(None, None)
    status = subprocess.call(sys.argv[1:])
    mpi.MPI_Finalize()
    sys.exit(status)
