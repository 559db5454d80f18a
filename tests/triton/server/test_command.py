from __future__ import annotations

import os
import pwd
import socket
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from trtllm_truss.errors import TritonError
from trtllm_truss.machine.runtime import TritonInstallation
from trtllm_truss.processes.child import remove_folder
from trtllm_truss.triton.server import ports as ports_module
from trtllm_truss.triton.server.command import (
    Launch,
    launch_environment,
    launcher,
    new_launch,
    server_command,
    server_environment,
)
from trtllm_truss.triton.server.ports import Ports, free_ports

LAUNCH = Launch("7_ab", Ports(1001, None, 1003, 1004), "trtllm_truss_7_ab_", Path("/tmp/7_ab"))


def command(launch=LAUNCH, **options):
    return server_command(
        Path("/t/tritonserver"), launch, repository=Path("/r"), backends=Path("/b"), **options
    )


def test_single_rank_is_plain_and_on_loopback():
    assert command() == [
        "/t/tritonserver",
        "--id=7_ab",
        "--model-repository=/r",
        "--backend-directory=/b",
        "--grpc-address=127.0.0.1",
        "--grpc-port=1001",
        "--grpc-restricted-protocol=shared-memory,trace,logging:closed:to:all=x",
        "--allow-http=false",
        "--metrics-address=127.0.0.1",
        "--metrics-port=1003",
        "--disable-auto-complete-config",
        "--backend-config=python,shm-region-prefix-name=trtllm_truss_7_ab_0_",
        "--strict-readiness=true",
        "--exit-timeout-secs=5",
        "--log-verbose=0",
    ]


def test_http_is_open_on_loopback_where_it_is_asked_for():
    arguments = command(replace(LAUNCH, ports=Ports(1001, 1002, 1003, 1004)))
    assert "--allow-http=false" not in arguments
    assert [argument for argument in arguments if "http" in argument] == [
        "--http-address=127.0.0.1",
        "--http-port=1002",
        "--http-restricted-api=shared-memory,trace,logging:closed:to:all=x",
    ]


def test_other_ranks_load_the_engine_alone_under_their_own_prefix():
    arguments = command(rank=2)
    assert arguments[-2:] == ["--model-control-mode=explicit", "--load-model=tensorrt_llm"]
    assert "--backend-config=python,shm-region-prefix-name=trtllm_truss_7_ab_2_" in arguments


def test_orchestrator_mode_is_refused():
    installation = TritonInstallation(Path("/t/tritonserver"), Path("/unused"))
    with pytest.raises(TritonError, match="TRTLLM_ORCHESTRATOR=1 is set"):
        launcher(
            installation,
            repository=Path("/r"),
            backends=Path("/b"),
            environ={"TRTLLM_ORCHESTRATOR": "1"},
        )


def test_environment_has_no_secrets_and_all_paths():
    parent = {
        "HOME": "/h",
        "PATH": "/usr/bin",
        "HF_TOKEN": "s",
        "HUGGING_FACE_HUB_TOKEN": "s",
        "TRUSS_SECRET_hf_access_token": "s",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_SESSION_TOKEN": "s",
        "BASETEN_API_KEY": "s",
        "ODD": "1",
        "LD_LIBRARY_PATH": f"/mine{os.pathsep}",
        "PYTHONPATH": "/packages",
    }
    installation = TritonInstallation(
        Path("/t"),
        Path("/b"),
        library_paths=(Path("/libs"),),
        python_paths=(Path("/packages"),),
        site_paths=(Path("/site"), Path("/dist")),
        program_path=Path("/venv/bin"),
    )
    assert server_environment(parent, installation, ["ODD"]) == {
        "HOME": "/h",
        "ODD": "1",
        "LD_LIBRARY_PATH": "/libs:/mine",
        "PYTHONPATH": "/packages",
        "TRTLLM_TRUSS_SITE": "/site:/dist",
        "PATH": "/venv/bin:/usr/bin",
    }


def test_environment_of_a_complete_installation_is_ours():
    plain = TritonInstallation(Path("/t"), Path("/b"))
    assert server_environment({"TZ": "UTC"}, plain) == {"TZ": "UTC", "TRTLLM_TRUSS_SITE": ""}


def test_another_python_and_its_driver_come_first(tmp_path):
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "python3").write_text("")
        (tmp_path / folder / "python3").chmod(0o755)
    installation = TritonInstallation(
        Path("/t"), Path("/b"), library_paths=(Path("/libs"),), program_path=tmp_path / "ours"
    )
    parent = {"PATH": f"/opt/bin:{tmp_path}/theirs:/usr/bin", "LD_LIBRARY_PATH": "/host"}
    here = server_environment(parent, installation)
    assert here["PATH"].split(":")[0] == f"{tmp_path}/ours"
    there = server_environment(
        parent, installation, python=tmp_path / "theirs/python3", library_paths=[Path("/compat")]
    )
    assert there["PATH"] == parent["PATH"]
    assert there["LD_LIBRARY_PATH"] == "/compat:/libs:/host"


def test_launch_environment_leaves_the_original_unchanged():
    environment = {"A": "1", "TMPDIR": "/tmp"}
    added = launch_environment(environment, LAUNCH)
    assert environment == {"A": "1", "TMPDIR": "/tmp"}
    assert added["A"] == "1"
    assert added["TMPDIR"] == added["OMPI_MCA_btl_sm_backing_directory"] == "/tmp/7_ab"
    assert added["PRTE_MCA_oob_tcp_static_ipv4_ports"] == "1004"
    assert added["OMPI_MCA_btl"] == "^tcp"
    assert added["OMPI_MCA_odls_base_sigkill_timeout"] == "0"
    chosen = {**environment, "OMPI_MCA_btl": "self,tcp"}
    assert launch_environment(chosen, LAUNCH)["OMPI_MCA_btl"] == "self,tcp"


def test_mpi_has_a_home(monkeypatch):
    assert launch_environment({"HOME": "/h"}, LAUNCH)["HOME"] == "/h"
    monkeypatch.delenv("HOME", raising=False)
    assert launch_environment({}, LAUNCH)["HOME"] == pwd.getpwuid(os.getuid()).pw_dir
    monkeypatch.setattr("pathlib.Path.home", Mock(side_effect=RuntimeError("no home directory")))
    assert launch_environment({}, LAUNCH)["HOME"] == "/tmp/7_ab"


def test_every_launch_has_names_and_a_folder_of_its_own():
    first, second = new_launch(), new_launch()
    try:
        assert first.run_id != second.run_id
        assert first.folder.is_dir()
        assert first.folder.name.startswith(first.shm_prefix)
    finally:
        remove_folder(first.folder)
        remove_folder(second.folder)


def test_one_rank_runs_without_mpirun(monkeypatch):
    monkeypatch.setattr("trtllm_truss.triton.server.command.find_mpirun", None)
    installation = TritonInstallation(Path("/t/tritonserver"), Path("/unused"))
    given = launcher(installation, repository=Path("/r"), backends=Path("/b"))(LAUNCH)
    assert given == command()


def test_several_ranks_are_one_job():
    installation = TritonInstallation(Path("/t/tritonserver"), Path("/unused"))
    given = launcher(installation, repository=Path("/r"), backends=Path("/b"), world_size=3)(LAUNCH)
    head = given.index("-n")
    assert Path(given[0]).name == "mpirun"
    assert given[head:] == [
        *("-n", "1", *command(rank=0)),
        *(":", "-n", "1", *command(rank=1)),
        *(":", "-n", "1", *command(rank=2)),
    ]


@pytest.mark.parametrize("first", [32_768, 1024, 0])
def test_no_outgoing_connection_takes_a_free_port(first, monkeypatch):
    """A start that spawns workers hangs where Open MPI's port is taken."""
    monkeypatch.setattr(ports_module, "_first_outgoing_port", lambda: first)
    unused = ports_module.unused_ports(8)
    assert len({*unused}) == 8
    assert all(port in range(20_000, 30_000) for port in unused) is (first == 32_768)


def test_a_port_in_use_is_passed_over(monkeypatch):
    monkeypatch.setattr(ports_module, "_first_outgoing_port", lambda: 32_768)
    (used,) = ports_module.unused_ports(1)
    with socket.create_server(("127.0.0.1", used)):
        monkeypatch.setattr(ports_module.random, "sample", lambda *_: [used + 1, used])
        (other,) = ports_module.unused_ports(1)
    assert other != used


def test_free_ports_differ():
    ports = free_ports(http_port=0)
    assert len({ports.grpc, ports.http, ports.metrics, ports.mpi}) == 4


@pytest.mark.parametrize("http_port", [None, 8000])
def test_the_http_port_is_the_one_asked_for_or_none(http_port):
    assert free_ports(http_port).http == http_port


def test_the_grpc_port_can_be_chosen():
    assert free_ports(grpc_port=8001).grpc == 8001
