"""`selftest --machine`: real MPI, and a file that tells nothing of whose machine it is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_llm_api import SITE, open_mpi
from tests.support.waiting import PATIENCE_S

from trtllm_truss.engines.host import Gpu
from trtllm_truss.machine.describe import Gpus, inspect_machine
from trtllm_truss.machine.runtime import TensorRtLlm
from trtllm_workbench.cli.main import main
from trtllm_workbench.selftest import spawning
from trtllm_workbench.selftest.assumptions import served
from trtllm_workbench.selftest.assumptions.served import Installed
from trtllm_workbench.selftest.served_model import FellShort
from trtllm_workbench.selftest.spawning import Spawned, kill_a_worker, probe, spawn
from trtllm_workbench.selftest.stranger import PUBLIC_VERSION, VOCABULARY, scrubbed

NAME = "zebedee"
PLANTED = {
    "USER": NAME,
    "HOSTNAME": f"{NAME}.example.com",
    "HF_TOKEN": f"hf_{NAME}",
    "TRITON_NOTE": f"/home/{NAME}/10.1.2.3",
    "OMPI_MCA_note": NAME,
}


@pytest.fixture(autouse=True)
def _mpi_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in open_mpi().items():
        path = name == "PATH"
        monkeypatch.setenv(name, os.pathsep.join([value, os.environ["PATH"]]) if path else value)
    # Those of an idle machine are 20 and 4 s.
    monkeypatch.setattr(spawning, "LIMIT_S", PATIENCE_S)
    monkeypatch.setattr(spawning, "DEATH_LIMIT_S", 0.75 * PATIENCE_S)


def processes_in(folder: Path) -> list[int]:
    """Return the processes with a folder in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(folder).encode() in place.read_bytes():
                found.append(int(place.parent.name))
        except OSError:
            continue
    return found


def test_mpi_spawns_and_counts_slots(tmp_path: Path) -> None:
    found = spawn(TensorRtLlm(), 2, tmp_path)
    assert found.outcome == "works"
    assert found.slots is not None
    assert 1 <= found.slots <= (os.cpu_count() or 1)
    assert list(found.cores) == [len(os.sched_getaffinity(0))] * 2
    assert found.mpi4py == "4.1.2"
    assert found.sentence.startswith("spawned 2 workers in ")
    assert f"{found.slots} slots (Open MPI {found.open_mpi}, mpi4py 4.1.2)" in found.sentence
    assert processes_in(tmp_path) == []


def test_a_spawn_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory serves one job only, and the worker is another: it cannot reach its parent."""
    monkeypatch.setenv("OMPI_MCA_btl", "^tcp")
    found = spawn(TensorRtLlm(), 1, tmp_path, limit_s=4.0)
    assert found.outcome == "hangs"
    assert found.sentence.startswith("cannot spawn: 1 worker did not start within 120 s")
    assert processes_in(tmp_path) == []


@pytest.mark.parametrize(
    ("program", "outcome", "part"),
    [
        ("exit 3", "fails", "cannot spawn: 1 worker did not start at all"),
        (f'exec {sys.executable} -S -E "$@"', "not run", "mpi4py is not installed"),
    ],
)
def test_a_python_that_cannot_is_named(
    program: str, outcome: str, part: str, tmp_path: Path
) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    found = spawn(TensorRtLlm("1.2.1", python, installed=True), 1, tmp_path)
    assert found.outcome == outcome
    assert found.sentence.startswith(part)


def test_it_needs_no_extra() -> None:
    """NVIDIA's image has none of these, and must keep what it has instead."""
    program = (
        "import sys; sys.modules.update(dict.fromkeys(sys.argv[1:])); "
        "from trtllm_workbench.cli.main import main; main(['selftest', '--help'])"
    )
    extras = ("truss", "aiohttp", "fastapi", "h11", "numpy", "openvino_genai", "psutil", "uvicorn")
    ended = subprocess.run(
        [sys.executable, "-c", program, *extras], capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 0, ended.stderr
    assert "--machine" in ended.stdout


def test_the_death_of_a_worker_is_seen(tmp_path: Path) -> None:
    facts = kill_a_worker(TensorRtLlm(), tmp_path)
    row = served.death_of_a_worker
    assert row(Installed("1.2.1", facts=facts)).detail.startswith("with Open MPI ")
    assert processes_in(tmp_path) == []
    for version, parent in (("4.1.8", "is ended"), ("5.0.11", "waits"), ("5.0.11", "is told")):
        other = {"open_mpi": version, "parent_of_a_dead_worker": parent}
        with pytest.raises(FellShort, match=f"with Open MPI {version} the parent {parent}; "):
            row(Installed("1.2.1", facts=other))


def test_a_worker_that_cannot_be_spawned_ends_the_probe(tmp_path: Path) -> None:
    """Without Open MPI's daemon on `PATH`."""
    program = Path(spawning.__file__).with_name("probes").joinpath("worker_death.py").read_text()
    environment = {**spawning._environment(os.environ, tmp_path), "PATH": "/none"}
    ended = probe([sys.executable, "-c", program, "4"], environment, tmp_path, PATIENCE_S)
    assert ended.status == 1
    assert "mpi4py.MPI.Exception" in ended.output


def test_lines_of_a_log_are_no_answer(tmp_path: Path) -> None:
    program = 'import sys; print("{\\"a\\": 1}"); print("{not JSON"); sys.exit(int(sys.argv[1]))'
    command = [sys.executable, "-c", program]
    assert probe([*command, "0"], {}, tmp_path, 60).found == {"a": 1}
    assert probe([*command, "3"], {}, tmp_path, 60).found is None


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def run_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: TensorRtLlm
) -> tuple[int, str]:
    """Run the command on a machine whose every name is planted; return status and file."""
    gpu = Gpu(f"NVIDIA {NAME}", 80 << 30, 70 << 30, (9, 0), f"575.57.08+{NAME}")
    here = replace(inspect_machine(), runtime=runtime, gpus=Gpus((gpu,), gpu.driver_version, NAME))
    monkeypatch.setattr("trtllm_workbench.cli.selftest.inspect_machine", lambda: here)
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / NAME
    folder.mkdir()
    monkeypatch.chdir(folder)
    status = main(["selftest", "--machine"])
    return status, (folder / "trtllm-truss-machine.json").read_text()


def test_the_file_names_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(SITE), *sys.path)))
    monkeypatch.setenv("TLLM_FAKE_VERSION", f"1.2.1+{NAME}")
    runtime = TensorRtLlm(f"1.2.1+{NAME}", Path(sys.executable), installed=True, found_by=NAME)
    status, text = run_machine(tmp_path, monkeypatch, runtime)
    table = capsys.readouterr().out
    assert status == 0, table
    for planted in (NAME, socket.gethostname(), str(tmp_path), sys.prefix, "/", "@", "hf_"):
        assert planted not in text
    report = json.loads(text)
    assert {
        leaf
        for leaf in leaves(report)
        if isinstance(leaf, str) and leaf not in VOCABULARY and not PUBLIC_VERSION.fullmatch(leaf)
    } == set()
    assert report["versions"]["tensorrt_llm"] == "1.2.1"
    assert report["mpi"]["spawn"] == "works"
    assert report["sampler"] == {
        "chosen": "TRTLLMSampler",
        "argument": "sampler_type",
        "argument_exists": True,
        "default": "auto",
        "samples": True,
        "penalties": True,
        "seeds": True,
    }
    assert report["graphs_apply_adapters"] is False
    assert report["assumptions"]["nested-mappings"] == "held"
    assert report["assumptions"]["death-of-a-worker"] == "held"
    assert report["assumptions"]["adapters-apply"] == "skipped"
    assert "sampler_type: TRTLLMSampler (samples, penalties, seeds)" in table
    assert "ignored, by the release: graphs are off where adapters are configured" in table


def test_a_machine_without_tensorrt_llm_still_spawns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, text = run_machine(tmp_path, monkeypatch, TensorRtLlm())
    report = json.loads(text)
    assert status == 0
    assert report["mpi"]["spawn"] == "works"
    assert report["sampler"] == {"chosen": "none"}
    assert report["graphs_apply_adapters"] is None
    assert "held" not in report["assumptions"].values()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1.3.0rc5", "1.3.0rc5"),
        ("1.0.3.2510", "1.0.3.2510"),
        ("4.1.7a1", "4.1.7a1"),
        ("1.2.1+cu130.node7", "1.2.1"),
        ("10.1.2.3", "other"),
        ("1.2.1 of node7", "other"),
        ("/opt/secret", "other"),
        (None, None),
        (True, True),
        ([0.5, "held", "mine"], [0.5, "held", "other"]),
    ],
)
def test_a_text_that_is_no_version_is_replaced(value: object, expected: object) -> None:
    assert scrubbed(value) == expected


def test_an_unknown_mpi_has_no_version() -> None:
    spawned = Spawned("works", 1, 0.5, slots=8, mpi4py="3.1.5")
    assert spawned.sentence == "spawned 1 worker in 0.5 s; 8 slots (Open MPI unknown, mpi4py 3.1.5)"
