"""Wrong edits of a config.yaml: `check` names the place, and never differs from Truss's verdict."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.engines.engine_configs import new_config
from tests.support.hub_server import HubServer
from tests.support.paths import ROOT
from tests.support.smollm2 import write_small_smollm2, write_smollm2_tokenizer

from trtllm_workbench.cli.main import main

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from truss.base.truss_config import TrussConfig  # so that `check` asks it in this process

Config = dict[str, Any]
Edit = Callable[[Config], object]
TOKEN = "hf_" + "a" * 34


def put(path: str, value: object) -> Edit:
    """Return the edit that sets a key of any depth."""

    def edit(config: Config) -> None:
        *parents, last = path.split("/")
        for name in parents:
            config = config.setdefault(name, {})
        config[last] = value

    return edit


def drop(path: str) -> Edit:
    def edit(config: Config) -> None:
        *parents, last = path.split("/")
        for name in parents:
            config = config[name]
        del config[last]

    return edit


def rename(old: str, new: str) -> Edit:
    return lambda config: config.update({new: config.pop(old)})


# What `check` must say, and whether it is an error.
EDITS: dict[str, tuple[Edit, str, bool]] = {
    "requirements beside a file": (put("requirements", ["boto3"]), "requirements", True),
    "python_version": (put("python_version", "py38"), "python_version", True),
    "python_version number": (put("python_version", 3.12), "python_version", True),
    "memory": (put("resources/memory", "16GB"), "memory", True),
    "cpu": (put("resources/cpu", 4), "resources.cpu", True),
    "build_commands": (put("build_commands", "pip install x"), "build_commands", True),
    "system_packages": (put("system_packages", "ffmpeg"), "system_packages", True),
    "requirements text": (put("requirements", "boto3"), "requirements", True),
    "trt_llm": (put("trt_llm", {"build": {"base_model": "decoder"}}), "trt_llm", True),
    "model_cache": (
        put("model_cache", [{"repo_id": "a/b", "revision": "main"}]),
        "model_cache",
        True,
    ),
    "token in the environment": (
        put("environment_variables/HF_TOKEN", TOKEN),
        "environment_variables.HF_TOKEN looks like a token",
        False,
    ),
    "token elsewhere": (
        put("build_commands", [f"curl -H 'Authorization: Bearer {TOKEN}' x"]),
        "build_commands[0] looks like a token",
        False,
    ),
    "password in a URL": (
        put("environment_variables/PIP_INDEX_URL", "https://me:pw@example.com/simple"),
        "environment_variables.PIP_INDEX_URL looks like a token",
        False,
    ),
    "secret with a value": (
        put("secrets/hf_access_token", TOKEN),
        "secrets.hf_access_token",
        False,
    ),
    "secrets list": (put("secrets", ["hf_access_token"]), "secrets must be a mapping", True),
    "no resources": (drop("resources"), "resources.accelerator is missing", False),
    "no accelerator": (drop("resources/accelerator"), "resources.accelerator is missing", False),
    "resource": (
        rename("resources", "resource"),
        "no key resource; did you mean resources?",
        False,
    ),
    "acelerator": (
        lambda config: config["resources"].update(
            acelerator=config["resources"].pop("accelerator")
        ),
        "no key resources.acelerator; did you mean accelerator?",
        False,
    ),
    "no image": (drop("base_image"), "base_image.image is missing", False),
    "base_imag": (rename("base_image", "base_imag"), "did you mean base_image?", False),
    "image key": (put("base_image/imag", "x"), "base_image.imag; did you mean image?", False),
    "model_metdata": (
        rename("model_metadata", "model_metdata"),
        "model_metdata is not a key; did you mean model_metadata?",
        True,
    ),
    "runtime key": (put("runtime/predict_concurency", 9), "predict_concurency", False),
    "env": (put("environment_variable", {"A": "b"}), "did you mean environment_variables?", False),
    "weights key": (
        put("weights", [{"source": "hf://a/b@main", "mount_location": "/m", "patterns": []}]),
        "weights[0].patterns",
        False,
    ),
    "weights source": (
        put("weights", [{"source": "a/b", "mount_location": "/m"}]),
        "weights[0].source",
        True,
    ),
    "weights place": (
        put("weights", [{"source": "hf://a/b@main", "mount_location": "m"}]),
        "weights[0].mount_location",
        True,
    ),
    "weights type": (put("weights", {"source": "hf://a/b"}), "weights", True),
    "accelerator": (put("resources/accelerator", "H1000"), "resources.accelerator", True),
    "accelerator count": (put("resources/accelerator", "H100:0"), "accelerator", True),
    "node_count": (put("resources/node_count", 2), "resources.node_count is 2", False),
    "instance_type": (put("resources/instance_type", "A10G:4x16"), "instance_type", False),
    "data_dir": (put("data_dir", ["data"]), "data_dir", True),
    "external_data": (put("external_data", {"a": 1}), "external_data", True),
    "input_type": (put("input_typ", "Any"), "did you mean input_type?", False),
    "health": (
        put("runtime/health_checks", {"startup_threshold_seconds": "long"}),
        "startup_threshold_seconds",
        True,
    ),
    "local engine": (lambda config: None, "which `truss push` leaves behind", False),
    "runtime number": (put("runtime/predict_concurrency", "many"), "predict_concurrency", True),
    "no tensor_parallelism": (
        put("model_metadata/tensor_paralelism", 2),
        "tensor_paralelism",
        True,
    ),
    "a key of runtime": (
        put("model_metadata/max_batch_size", 8),
        "max_batch_size is not a setting (it belongs under model_metadata.runtime or "
        "model_metadata.build)",
        True,
    ),
    "a key of serving": (
        put("model_metadata/queue_timeout_s", 8),
        "queue_timeout_s is not a setting (it belongs under model_metadata.serving)",
        True,
    ),
    "a setting in serving": (
        put("model_metadata/serving/generation", {}),
        "serving.generation is not a setting (it belongs under model_metadata)",
        True,
    ),
    "a key of two sections": (
        put("model_metadata/max_seq_len", 8192),
        "belongs under model_metadata.build or model_metadata.runtime.llm_args",
        True,
    ),
    "an argument of the LLM API": (
        put("model_metadata/runtime/max_seq_len", 8192),
        "max_seq_len is not a parameter of the tensorrt_llm model. For a checkpoint it is "
        "runtime.llm_args.max_seq_len.",
        True,
    ),
    "unknown setting": (put("model_metadata/max_batch", 8), "max_batch", True),
    "docker_server": (put("docker_server", {"start_command": "x"}), "docker_server", True),
    "requirements file": (
        put("requirements_file", "./requirement.txt"),
        "which is not here",
        False,
    ),
    "no requirements": (drop("requirements_file"), "requirements_file is missing", False),
    "model_module_dir": (put("model_module_dir", "modle"), 'model_module_dir is "modle"', False),
    "packages": (put("bundled_packages_dir", "package"), 'is "package", which is not', False),
    "no data": (put("data_dir", "dat"), 'data_dir is "dat", which is not here', False),
    "class": (put("model_class_name", "Modell"), "but model/model.py has Model", False),
    "flavour": (
        put("base_image/image", "nvcr.io/nvidia/tritonserver:25.10-vllm-python-py3"),
        "only those with -trtllm-python-py3 have TensorRT-LLM",
        False,
    ),
    "interpreter": (
        put("base_image/python_executable_path", "/usr/bin/pyton3"),
        "set it to /usr/bin/python3",
        False,
    ),
    "no interpreter": (
        drop("base_image/python_executable_path"),
        "python_executable_path is missing",
        False,
    ),
    "new Python": (put("python_version", "py314"), "this server runs on py310", False),
    "secret of another name": (
        put("secrets", {"hf_token": None}),
        "secrets.hf_token is read by nothing here; did you mean hf_access_token?",
        False,
    ),
    "secret in capitals": (
        put("secrets", {"HF_ACCESS_TOKEN": None}),
        "did you mean hf_access_token?",
        False,
    ),
    "secret with a blank": (
        put("secrets", {"hf_access_token ": None}),
        "did you mean hf_access_token?",
        False,
    ),
    "token as a name": (put("secrets", {TOKEN: None}), "the name of a secret looks like", False),
    "variable without quotes": (
        put("environment_variables/HF_XET_HIGH_PERFORMANCE", True),
        "write its value in quotes",
        False,
    ),
    "variable's name": (
        put("environment_variables/HF XET", "1"),
        "is no name of a variable",
        False,
    ),
    "memory without a unit": (put("resources/memory", "80"), "less than 1 GiB", False),
    "millicores": (put("resources/cpu", "4000"), "write 4 for 4000m", False),
    "milliseconds": (
        put("runtime/health_checks", {"startup_threshold_seconds": 1_800_000}),
        "Baseten's limit is 3000",
        False,
    ),
    "mount over the Truss": (
        put("weights", [{"source": "hf://a/b@main", "mount_location": "/app/model"}]),
        "hides /app of the image",
        False,
    ),
    "mount of another repository": (
        put("weights", [{"source": "hf://a/b@main", "mount_location": "/models/b"}]),
        "no setting names hf://a/b@main of weights",
        False,
    ),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    (folder / "config.json").write_text(json.dumps(new_config("1.0.0")))
    (folder / "rank0.engine").write_bytes(b"x" * 1000)
    write_smollm2_tokenizer(folder)
    return folder


def base(engine: Path) -> Config:
    config: Config = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    config["model_metadata"] = {"engine_repository": str(engine)}
    return config


def checked(
    folder: Path, config: Config, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    (folder / "requirements.txt").write_text("boto3\n")
    for name in ("model", "packages", "data"):
        (folder / name).mkdir()
    (folder / "model/model.py").write_text("class Model:\n    pass\n")
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    status = main(["check", "--json", "--truss", str(folder)])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_a_wrong_edit_is_named(
    edit: str, engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, part, is_error = EDITS[edit]
    config = copy.deepcopy(base(engine))
    change(config)
    status, found = checked(tmp_path, config, capsys)
    told = [each for each in found["findings"] if part in each["sentence"]]
    assert told, found
    assert all(TOKEN not in each["sentence"] for each in found["findings"])
    assert (status != 0) == is_error, found
    assert is_error == any(each["severity"] == "error" for each in told), told
    try:
        TrussConfig.from_yaml(tmp_path / "config.yaml")
    except Exception:  # noqa: BLE001 - Truss's own validators raise several kinds
        assert status != 0
    else:
        assert "truss_refuses" not in {each["code"] for each in found["findings"]}


def test_a_model_of_the_cpu_needs_the_wheel_of_triton(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = base(write_small_smollm2(tmp_path / "model-of-the-cpu"))
    del config["base_image"]
    config["resources"] = {"cpu": "4", "memory": "4Gi"}
    _, found = checked(tmp_path, config, capsys)
    assert "no_triton_wheel" in {each["code"] for each in found["findings"]}


def test_the_right_file_has_no_finding_of_these(
    hub: HubServer, engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add("org/engine", {file.name: file.read_bytes() for file in engine.iterdir()})
    config = base(engine)
    config["model_metadata"]["engine_repository"] = "org/engine"
    status, found = checked(tmp_path, config, capsys)
    assert status == 0
    assert {each["code"] for each in found["findings"]} <= {"no_gpu", "predict_concurrency"}
