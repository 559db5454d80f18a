"""Launches that another host accepts: MPI's daemon, for this job, connected to the leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtllm_truss.hosts.leader import WrongCommand, check_values, daemon_command, read_command

LEADER = "10.0.0.1"
OPEN_MPI_5 = (
    "PRTE_PREFIX=/opt/mpi;export PRTE_PREFIX;LD_LIBRARY_PATH=/opt/mpi/lib:$LD_LIBRARY_PATH;"
    "export LD_LIBRARY_PATH;/opt/mpi/bin/prted --daemonize --prtemca ess "
    '"env" --prtemca ess_base_nspace "prterun-vm-1436@0" --prtemca ess_base_vpid 1 --prtemca '
    'ess_base_num_procs "2" --prtemca prte_hnp_uri '
    '"prterun-vm-1436@0.0;tcp://10.0.0.1:37817:24" --prtemca plm_ssh_agent "/x/agent" '
    '--prtemca prte_tmpdir_base "/tmp/a b" --prtemca plm "ssh"'
)
"""Arguments of Open MPI 5.0.11 to its agent."""
OPEN_MPI_4 = (
    "PATH=/usr/local/mpi/bin:$PATH ; export PATH ; /usr/local/mpi/bin/orted -mca ess "
    '"env" -mca ess_base_jobid "2846228480" -mca ess_base_vpid 1 -mca ess_base_num_procs "2" '
    '-mca orte_node_regex "leader,[1:10].0.0.2@0(2)" -mca orte_hnp_uri '
    '"2846228480.0;tcp://10.0.0.1:40917" -mca plm "rsh" --tree-spawn'
)
"""As Open MPI 4's sources have it; not run here."""
VALUES = read_command(OPEN_MPI_5.split(" "))


def test_the_values_of_open_mpi_5() -> None:
    assert VALUES == {
        "program": "prted",
        "ess_base_nspace": "prterun-vm-1436@0",
        "ess_base_vpid": "1",
        "ess_base_num_procs": "2",
        "prte_hnp_uri": "prterun-vm-1436@0.0;tcp://10.0.0.1:37817:24",
    }
    check_values(VALUES, LEADER)
    command = daemon_command(Path("/opt/mpi/bin/mpirun"), VALUES, as_root=True)
    assert command[:3] == ["/opt/mpi/bin/prted", "--allow-run-as-root", "--leave-session-attached"]
    assert command[3:6] == ["--prtemca", "ess", "env"]
    assert len(command) == 3 + 3 * 5


def test_the_values_of_open_mpi_4() -> None:
    values = read_command([OPEN_MPI_4])
    check_values(values, LEADER)
    command = daemon_command(Path("/usr/local/mpi/bin/mpirun"), values, as_root=True)
    assert command[:4] == ["/usr/local/mpi/bin/orted", "-mca", "ess", "env"]


@pytest.mark.parametrize(
    "line",
    ["rm -rf /", f"{OPEN_MPI_5};reboot", "sh -c prted", "", "prted 'x", "/bin/prted2 --prtemca"],
)
def test_other_commands_of_mpirun_are_refused(line: str) -> None:
    with pytest.raises(WrongCommand):
        read_command(line.split(" "))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("program", "sh"),
        ("program", ["prted"]),
        ("ess_base_vpid", "1 --prtemca plm_ssh_agent /bin/sh"),
        ("ess_base_vpid", 1),
        ("ess_base_nspace", "prterun-vm-1436@0\n"),
        ("ess_base_num_procs", "$(reboot)"),
        ("prte_hnp_uri", "prterun-vm-1436@0.0;tcp://10.0.0.9:37817:24"),
        ("prte_hnp_uri", "prterun-vm-1436@0.0;tcp://10.0.0.1,10.0.0.9:37817:24"),
        ("prte_hnp_uri", "file:/etc/passwd"),
        ("plm_ssh_agent", "/bin/sh"),
    ],
)
def test_a_launch_with_another_value_is_refused(name: str, value: object) -> None:
    with pytest.raises(WrongCommand):
        check_values({**VALUES, name: value}, LEADER)


@pytest.mark.parametrize("name", VALUES)
def test_a_launch_with_a_missing_value_is_refused(name: str) -> None:
    with pytest.raises(WrongCommand):
        check_values({key: value for key, value in VALUES.items() if key != name}, LEADER)
