"""The rank of this process: launchers' variables as they set them, and what else may be set."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_truss.errors import SettingsError
from trtllm_truss.processes.child import child_environment
from trtllm_truss.processes.mpi_job import Rank, job_variables, read_rank
from trtllm_truss.serving.service import Service
from trtllm_truss.settings.loading import Environment, parse_settings, resolve_hosts

PMIX = {
    "PMIX_RANK": "3",
    "PMIX_SERVER_URI41": "prterun-vm-5655@0.0;tcp4://127.0.0.1:54831",
    "PMIX_NAMESPACE": "prterun-vm-5655@1",
    "PMIX_GDS_MODULE": "shmem2,hash",
}
OPEN_MPI = {
    **PMIX,
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_UNIVERSE_SIZE": "4",
    "OMPI_MCA_ess": "^singleton",
    "OMPI_MCA_orte_hnp_uri": "1935802368.0;tcp://192.0.2.2:60349",
}
OPTIONS = {
    "OMPI_MCA_btl": "^tcp",
    "OMPI_MCA_orte_tmpdir_base": "/tmp",
    "PMIX_MCA_gds": "hash",
    "PMIX_PREFIX": "/opt/mpi",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
}
STEP = {
    "SLURM_JOB_ID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
SLURM = {**PMIX, "PMIX_NAMESPACE": "slurm.pmix.2.0", **STEP}
BATCH_SCRIPT = {"SLURM_JOB_ID": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
PLACE = Rank(index=3, size=4, each=2)


def job_of_one(variables: dict[str, str]) -> dict[str, str]:
    ones = {name: "1" for name in variables if name.endswith(("SIZE", "TASKS", "PER_NODE"))}
    zeros = {name: "0" for name in variables if name.endswith(("RANK", "PROCID", "LOCALID"))}
    return {**variables, **ones, **zeros}


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, None),
        (OPEN_MPI, PLACE),
        (SLURM, PLACE),
        ({**OPEN_MPI, **BATCH_SCRIPT}, PLACE),  # `mpirun` in a batch script
        ({**SLURM, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, PLACE),  # stale
        ({**PMIX, **STEP}, PLACE),
        ({**SLURM, "SLURM_NTASKS": "8"}, PLACE),  # of the job, with `--preserve-env`
        (STEP, None),  # `srun --mpi=none`
        (BATCH_SCRIPT, None),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, None),
        ({"PMIX_RANK": "3"}, None),
        (job_of_one(OPEN_MPI), None),
        (job_of_one(SLURM), None),
    ],
)
def test_a_rank_needs_the_address_of_its_launcher(
    variables: dict[str, str], rank: Rank | None
) -> None:
    assert read_rank(variables) == rank


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        (PMIX, "PMIx says that this process is rank 3 of a job, but SLURM_PROCID is ''"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "x"}, "OMPI_COMM_WORLD_SIZE is 'x'"),
        ({**SLURM, "SLURM_PROCID": "2"}, "contradict each other: PMIX_RANK is 3, and SLURM_PROCID"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "3"}, "is 3 of 3"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)"}, "'2,1(x2)' for 4 ranks; each"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x4)"}, "'2(x4)' for 4 ranks; each host must"),
        ({**SLURM, "SLURM_LOCALID": "5"}, "SLURM_PROCID is 3 of 4, with 5 as SLURM_LOCALID"),
        ({**SLURM, "SLURM_PROCID": "3" * 5000}, "SLURM_PROCID is '333"),
        ({**SLURM, "SLURM_LOCALID": "0"}, "rank 3 of 4 is number 0 on its host"),  # cyclic
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, "mpirun --map-by ppr:N:node"),
    ],
)
def test_other_variables_are_refused_by_name(variables: dict[str, str], reason: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_rank(variables)
    assert reason in refused.value.message


@pytest.mark.parametrize("variables", [OPEN_MPI, SLURM, job_of_one(OPEN_MPI)])
def test_children_are_no_ranks(variables: dict[str, str]) -> None:
    """MPI in a probe of this machine, or in `mpirun` itself, would be the same rank again."""
    assert child_environment({**variables, **OPTIONS}) == OPTIONS
    of_job = job_variables({**variables, **OPTIONS, "SLURM_JWT": "key", "HOME": "/h"})
    assert of_job == variables


def test_slurms_variables_around_mpirun_are_of_another_rank() -> None:
    assert job_variables({**OPEN_MPI, **BATCH_SCRIPT}) == OPEN_MPI


def environment(variables: dict[str, str]) -> Environment:
    return Environment(None, variables)


def settings_of(**metadata: object):
    return parse_settings({"model_metadata": metadata})


def test_the_launchers_hosts_count() -> None:
    engine = {"engine_repository": "o/e"}
    for given in ({}, {"nodes": 2}):
        assert resolve_hosts(settings_of(**engine, **given), environment(OPEN_MPI)).node_count == 2
    assert resolve_hosts(settings_of(**engine), environment({})).node_count == 1
    with pytest.raises(SettingsError, match="is 3, but the launcher has placed the 4 ranks on 2"):
        resolve_hosts(settings_of(**engine, nodes=3), environment(SLURM))


def test_several_hosts_need_a_launcher() -> None:
    """A list of names was that of a leader and its members."""
    with pytest.raises(SettingsError, match="nodes is 2, but no launcher has started this process"):
        resolve_hosts(settings_of(engine_repository="o/e", nodes=2), environment({}))
    with pytest.raises(SettingsError, match=r'nodes is \["a", "b"\]; it must be a whole number'):
        settings_of(engine_repository="o/e", nodes=["a", "b"])


def test_only_rank_0_serves() -> None:
    """Truss's server calls this on every rank."""
    service = Service(settings_of(engine_repository="o/e"), environment(SLURM), Path())
    with pytest.raises(SettingsError, match="is rank 3 of 4, and rank 0 serves; start every rank"):
        service.start()


def test_ranks_do_not_build_the_engine() -> None:
    build = {"checkpoint_repository": "o/m", "max_seq_len": 1024, "max_batch_size": 1}
    with pytest.raises(SettingsError, match="rank 3 of 4, and each would build the engine"):
        resolve_hosts(settings_of(build=build), environment(SLURM))
