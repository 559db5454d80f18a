"""The rank of this process in an MPI job that another program has launched: `mpirun` or `srun`.

Both name it through PMIx. A process of a job has `PMIX_NAMESPACE`, `PMIX_RANK` and the address of
its server. Slurm's variables alone name no rank: the shell of `sbatch` and the tasks of
``srun --mpi=none`` have them too.

PMIx does not report the size: Open MPI's variables do, or those of Slurm's job step. ``mpirun`` in
a job of Slurm leaves both, and its own are right. Slurm's namespaces are ``slurm.pmix.JOB.STEP``.
All this was seen with Open MPI 4.1.8 and 5.0.11 and with Slurm 22.05.8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from trtllm_truss.errors import SettingsError

_RANK, _NAMESPACE, _SERVER = "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_URI"
_OF_SLURM = "slurm.pmix."
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
_TASKS = "SLURM_STEP_TASKS_PER_NODE"
_EQUAL_TASKS = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")
"""As many tasks on each host: `2`, or `2(x4)` for four of them; else `2(x3),1`."""

JOB_VARIABLES = re.compile(
    r"OMPI_((COMM_|)WORLD_\w+|UNIVERSE_SIZE|FIRST_RANKS|(NUM_|)APP_CTX\w*|FILE_LOCATION|ARGV"
    r"|COMMAND|TOOL_NAME)$"
    r"|OMPI_MCA_(ess\w*|pmix|num_procs|orte_(?!tmpdir_base$)\w+)$"
    r"|PMIX_(?!MCA_|PREFIX$|INSTALL_PREFIX$)|PMI_|ORTE_|PRTE_LAUNCHED$"
)
"""Variables by which a launcher makes a process a rank; MPI's others are options.

A second process that starts MPI with them would be the same rank again. `OMPI_MCA_orte_tmpdir_base`
is ours too: it keeps MPI's files in the folder of one start.
"""
_SLURM_VARIABLES = re.compile(r"SLURMD?_(?!JWT$|SPANK_)")  # a key, and plugins' own


@dataclass(frozen=True, slots=True)
class Rank:
    """A place in a job with one process per GPU.

    Attributes:
        size: ranks of the job.
        each: ranks on each host.
    """

    index: int
    size: int
    each: int

    @property
    def hosts(self) -> int:
        return self.size // self.each


def read_rank(variables: Mapping[str, str]) -> Rank | None:
    """Return the rank of this process; None without a launcher, and in a job of one.

    Raises:
        SettingsError: the launcher's variables are incomplete, or its ranks are not placed as
            TensorRT-LLM needs them.
    """
    if not _is_launched(variables):
        return None
    size_from = _SLURM if _is_slurms(variables) else _OPEN_MPI
    index, size, local = (_number(name, variables) for name in size_from)
    if index != _number(_RANK, variables) or not 0 <= local <= index < size:
        raise SettingsError(
            f"the launcher's variables contradict each other: {_RANK} is {variables[_RANK]}, and "
            f"{size_from[0]} is {index} of {size}, with {local} as {size_from[2]}. Start the ranks "
            "by `mpirun` of Open MPI or by `srun --mpi=pmix`."
        )
    if size == 1:
        return None
    each = _each(variables, size)
    if size % each or index % each != local:
        raise SettingsError(
            f"rank {index} of {size} is number {local} on its host. TensorRT-LLM numbers the GPUs "
            "by rank, so each host must have the same number of ranks, one after the other: "
            "`mpirun --map-by ppr:N:node`, or `srun --ntasks-per-node N --distribution block`."
        )
    return Rank(index, size, each)


def job_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make a child a rank; none without a launcher."""
    if not _is_launched(variables):
        return {}
    of_slurm = _is_slurms(variables)  # else they are those of the shell around `mpirun`
    return {
        name: value
        for name, value in variables.items()
        if JOB_VARIABLES.match(name) or (of_slurm and _SLURM_VARIABLES.match(name))
    }


def _is_launched(variables: Mapping[str, str]) -> bool:
    has_server = any(name.startswith(_SERVER) for name in variables)
    return has_server and _RANK in variables and _NAMESPACE in variables


def _is_slurms(variables: Mapping[str, str]) -> bool:
    return variables[_NAMESPACE].startswith(_OF_SLURM) or _OPEN_MPI[0] not in variables


def _each(variables: Mapping[str, str], size: int) -> int:
    if not _is_slurms(variables):
        return max(1, _number(_LOCAL_SIZE, variables))
    tasks = _EQUAL_TASKS.fullmatch(variables.get(_TASKS, ""))
    if tasks is None or int(tasks[1]) * int(tasks[2] or 1) != size:
        raise SettingsError(
            f"{_TASKS} is {variables.get(_TASKS)!r} for {size} ranks; each host must have the same "
            "number of them: `srun --ntasks-per-node N`."
        )
    return max(1, int(tasks[1]))


def _number(name: str, variables: Mapping[str, str]) -> int:
    text = variables.get(name, "")
    if not (text.isdecimal() and len(text) < 10):  # int() refuses thousands of digits
        raise SettingsError(
            f"PMIx says that this process is rank {variables[_RANK]} of a job, but {name} is "
            f"{text[:60]!r}; start the ranks by `mpirun` of Open MPI or by `srun --mpi=pmix`."
        )
    return int(text)
