"""The examples for several hosts: published schemas, and agreement with the code."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.paths import ROOT

from trtllm_truss.cli.main import SERVER_COMMANDS, _parser

MPI_JOB = ROOT / "examples/kubernetes/mpijob.yaml"
PYTHON = "/usr/bin/python3"
"""In images from 26.03 on, the first on PATH has none of the server's packages."""
BATCH_SCRIPT = ROOT / "examples/slurm/serve.sbatch"
COUNT = "count"
PATH = "path"
TEMPLATE = "pod template"
OF_MPI_JOB: dict[str, Any] = {
    "launcherCreationPolicy": {"AtStartup", "WaitForWorkersReady"},
    "mpiImplementation": {"OpenMPI", "Intel", "MPICH"},
    "slotsPerWorker": COUNT,
    "sshAuthMountPath": PATH,
    "runPolicy": {
        "cleanPodPolicy": {"None", "Running", "All"},
        **dict.fromkeys(
            ("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished"), COUNT
        ),
    },
    "mpiReplicaSpecs": {
        name: {
            "replicas": COUNT,
            "restartPolicy": {"Always", "OnFailure", "Never", "ExitCode"},
            "template": TEMPLATE,
        }
        for name in ("Launcher", "Worker")
    },
}
"""Keys and values of `spec` in kubeflow.org/v2beta1, without scheduling.

Source: manifests/base/kubeflow.org_mpijobs.yaml of
kubeflow/mpi-operator at caa3c47, 0.8.2."""


def check(value: Any, schema: Any, path: str = "spec") -> None:
    if isinstance(schema, dict):
        assert value.keys() <= schema.keys(), path
        for key, inner in value.items():
            check(inner, schema[key], f"{path}.{key}")
    elif isinstance(schema, set):
        assert value in schema, path
    elif schema == PATH:
        assert value.startswith("/"), path
    elif schema == COUNT:
        assert type(value) is int, path
        assert value >= 0, path
    else:
        assert value.keys() <= {"metadata", "spec"}, path
        check_pod(value)


def check_pod(template: dict[str, Any]) -> None:
    """Compare with models made from Kubernetes' schemas, where they are installed."""
    core = pytest.importorskip("cloudcoil.models.kubernetes.core.v1")
    model = core.PodTemplateSpec.model_validate(template)
    assert model.model_dump(by_alias=True, exclude_unset=True, mode="json") == template


def served(words: list[str], python: str = PYTHON) -> Any:
    """Parse the command of a rank, which the words end in."""
    at = words.index(python)
    assert words[at : at + 3] == [python, "-m", "trtllm_truss"]
    return _parser(SERVER_COMMANDS, words[at + 3 :]).parse_args(words[at + 3 :])


def value(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_the_job_of_the_mpi_operator_follows_the_published_schema() -> None:
    job = next(yaml.safe_load_all(MPI_JOB.read_text()))
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    for wrong in ({"slotsPerWorker": "8"}, {"nodes": 2}, {"mpiReplicaSpecs": {"Leader": {}}}):
        with pytest.raises(AssertionError):
            check(wrong, OF_MPI_JOB)
    check(job["spec"], OF_MPI_JOB)


def test_the_job_of_the_mpi_operator_starts_one_rank_for_each_gpu() -> None:
    job, service, policy = yaml.safe_load_all(MPI_JOB.read_text())
    launcher, worker = (job["spec"]["mpiReplicaSpecs"][name] for name in ("Launcher", "Worker"))
    (mpirun,), (sshd,) = (each["template"]["spec"]["containers"] for each in (launcher, worker))
    words, slots = mpirun["args"], job["spec"]["slotsPerWorker"]
    assert mpirun["image"] == sshd["image"]
    assert value(words, "-n") == str(slots * worker["replicas"])
    assert value(words, "--map-by") == f"ppr:{slots}:node"
    assert sshd["resources"]["limits"]["nvidia.com/gpu"] == str(slots)
    ssh_port = next(word for word in sshd["args"] if word.startswith("Port=")).partition("=")[2]
    assert value(words, "plm_rsh_args").startswith(f"-p {ssh_port} ")
    assert {each["name"] for each in mpirun["env"]} <= {
        after for word, after in pairwise(words) if word == "-x"
    }
    assert job["spec"]["sshAuthMountPath"] in " ".join(sshd["args"])
    options = served(words)
    assert (options.truss, options.host) == (Path("/app"), "0.0.0.0")
    assert options.port == sshd["ports"][0]["containerPort"]
    labels = worker["template"]["metadata"]["labels"]
    assert launcher["template"]["metadata"]["labels"] == labels
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert service["spec"]["selector"].items() >= labels.items()


@pytest.mark.parametrize("image", ["", "registry.example.com#my-truss:1"])
def test_the_batch_script_starts_one_rank_for_each_gpu(tmp_path: Path, image: str) -> None:
    for name, text in (("srun", 'printf "%s\\n" "$@"'), ("scontrol", "echo node1; echo node2")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    script = BATCH_SCRIPT.read_text()
    environment = {
        **{"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "IMAGE": image},
        **{"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "TRUSS": "/my truss"},
    }
    ended = subprocess.run(
        ["bash", "-s"], input=script, env=environment, capture_output=True, text=True, check=True
    )
    url, *words = ended.stdout.splitlines()
    options = served(words, PYTHON if image else "python3")
    assert {"--mpi=pmix", "--kill-on-bad-exit=1"} <= {*words}
    assert ("--container-image=registry.example.com#my-truss:1" in words) is bool(image)
    assert options.truss == Path("/app" if image else "/my truss")
    assert url.startswith(f"http://node1:{options.port} ")
    for refused in ("gpus-per-task", "gpu-bind"):
        assert f"#SBATCH --{refused}" not in script
