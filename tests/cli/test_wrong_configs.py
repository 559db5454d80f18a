"""Wrong edits of a config.yaml: `check` names the place, and never differs from Truss's verdict."""

from __future__ import annotations

import copy
import datetime
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.engines.engine_configs import new_config
from tests.fakes.hub.server import HubServer
from tests.support.paths import ROOT
from tests.support.smollm2 import write_small_smollm2, write_smollm2_tokenizer

from trtllm_truss.configuration import read_config
from trtllm_truss.errors import SettingsError
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


def mount(**keys: object) -> Edit:
    """Return the edit that adds an entry to `weights`."""
    return put("weights", [{"source": "hf://a/b@main", "mount_location": "/models/b", **keys}])


def drop(path: str) -> Edit:
    def edit(config: Config) -> None:
        *parents, last = path.split("/")
        for name in parents:
            config = config[name]
        del config[last]

    return edit


def rename(old: str, new: str) -> Edit:
    return lambda config: config.update({new: config.pop(old)})


# The expected finding of `check`, and whether it is an error.
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
        mount(patterns=[]),
        "weights[0].patterns",
        False,
    ),
    "weights source": (
        mount(source="a/b"),
        "weights[0].source",
        True,
    ),
    "weights place": (
        mount(mount_location="m"),
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
        "which is not in the Truss's folder; did you mean requirements.txt?",
        False,
    ),
    "no requirements": (drop("requirements_file"), "requirements_file is missing", False),
    "model_module_dir": (put("model_module_dir", "modle"), 'model_module_dir is "modle"', False),
    "packages": (put("bundled_packages_dir", "package"), 'is "package", which is not', False),
    "no data": (put("data_dir", "dat"), "did you mean data?", False),
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
        "secrets.hf_token is not used here; did you mean hf_access_token?",
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
        "is not a variable name",
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
        mount(mount_location="/app/model"),
        "hides /app of the image",
        False,
    ),
    "mount of another repository": (
        mount(),
        "no setting names hf://a/b@main of weights",
        False,
    ),
    "mount over everything": (
        mount(mount_location="/"),
        "would hide the whole image; choose a folder of its own",
        True,
    ),
    "secret of a mount": (
        mount(auth_secret_name="nope"),
        'weights[0].auth_secret_name is "nope", which secrets does not declare',
        False,
    ),
    "secret of a mount in auth": (
        mount(auth={"auth_method": "CUSTOM_SECRET", "auth_secret_name": "nope"}),
        "weights[0].auth.auth_secret_name",
        False,
    ),
    "patterns": (
        mount(allow_patterns="*"),
        'weights[0].allow_patterns is "*"; write a list',
        True,
    ),
    "section under another": (
        mount(runtime={"predict_concurrency": 8}),
        "weights[0].runtime; it is one of the file's first level: correct the indent",
        False,
    ),
    "use_gpu": (put("resources/use_gpu", "yes please"), "set it to true", False),
    "no use_gpu": (put("resources/use_gpu", False), "set it to true", False),
    "accelerator as a key": (
        put("resources/accelerator", {"H100": 2}),
        "write accelerator: H100:2",
        False,
    ),
    "accelerators as a mapping": (
        put("resources/accelerator", {"accelerator": "H100", "count": 3}),
        "asks for 3 of H100",
        True,
    ),
    "accelerator with a factor": (
        put("resources/accelerator", "H100x2"),
        'resources.accelerator is "H100x2"; write a GPU\'s name, such as H100:2',
        True,
    ),
    "accelerator's memory": (
        put("resources/accelerator", "A100-80GB"),
        "such as A100 or A100:2",
        True,
    ),
    "untested GPU": (put("resources/accelerator", "T4"), "use A10G or a newer GPU", False),
    "accelerator with a blank": (
        put("resources/accelerator", "A10G "),
        "resources.accelerator has blanks around it",
        False,
    ),
    "Python of another image": (put("python_version", "py310"), "set it to that", False),
    "secret's name as a path": (
        put("secrets", {"hf/key": None}),
        'secrets."hf/key" is not a valid name of a file in /secrets',
        False,
    ),
    "number as a secret's name": (
        put("secrets", {1: None}),
        "the key 1 of secrets: put it in quotes, or remove it",
        True,
    ),
    "number as a key": (put("model_name", 3.1), "model_name is 3.1; write a text, in quotes", True),
    "release as a number": (
        put("runtime/truss_server_version_override", 0.18),
        'write a release in quotes, such as "0.18.35"',
        True,
    ),
    "image as a number": (put("base_image/image", 25.1), "write an image's name, such as", True),
    "memory as a number": (put("resources/memory", 4), "write a size with its unit", True),
    "seconds with a unit": (
        put("runtime/health_checks", {"startup_threshold_seconds": "30m"}),
        'is "30m"; write a whole number, without a unit',
        True,
    ),
    "revision as a number": (
        put("model_metadata/engine_revision", 1234567),
        "engine_revision is 1234567, which YAML does not read as a text; put it in quotes",
        True,
    ),
    "revision as a date": (
        put("model_metadata/engine_revision", datetime.date(2024, 1, 1)),
        "engine_revision is 2024-01-01, which YAML does not read as a text; put it in quotes",
        True,
    ),
    "number in quotes": (
        put("model_metadata/tensor_parallelism", "1"),
        "it must be a whole number, without quotes",
        True,
    ),
    "a section in runtime": (
        put("model_metadata/runtime", {"serving": {}}),
        "runtime.serving is not a setting (it belongs under model_metadata)",
        True,
    ),
    "example": (
        put("model_metadata/example_model_input", {"prompt": "hi", "max_token": 8}),
        "example_model_input would be refused: max_token is not a field of this request; did you",
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


@pytest.mark.parametrize(
    ("edit", "part", "status"),
    [
        (put("model_metadata/tensor_parallelism", 4), "set it to 1", 3),
        (put("model_metadata/runtime", {"llm_args": {"max_seq_len": 9}}), "llm_args is set", 2),
        (put("resources/accelerator", "A10G"), "but the engine runs on the CPU; remove it", 0),
        (put("resources/use_gpu", True), "set it to false", 0),
        (put("resources", {}), "resources.cpu and resources.memory are missing", 0),
    ],
    ids=["tensor_parallelism", "llm_args", "accelerator", "use_gpu", "resources"],
)
def test_a_wrong_edit_of_a_remote_gguf_is_named(
    edit: Edit,
    part: str,
    status: int,
    hub: HubServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = write_small_smollm2(tmp_path / "model-of-the-cpu")
    hub.add("org/cpu", {file.name: file.read_bytes() for file in model.iterdir()})
    config = base(Path("org/cpu"))
    del config["base_image"]
    config["resources"] = {"cpu": "4", "memory": "4Gi"}
    config["weights"] = [{"source": "hf://org/cpu@main", "mount_location": "/models/cpu"}]
    edit(config)
    found_status, found = checked(tmp_path, config, capsys)
    assert [each for each in found["findings"] if part in each["sentence"]], found
    assert found_status == status


def test_a_mount_of_another_revision_is_a_finding_of_the_json(
    engine: Path, hub: HubServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.add("org/engine", {file.name: file.read_bytes() for file in engine.iterdir()})
    config = base(Path("org/engine"))
    config["model_metadata"]["engine_revision"] = "v2"
    config["weights"] = [{"source": "hf://org/engine@v1", "mount_location": "/models/engine"}]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    main(["check", "--json", "--truss", str(tmp_path)])
    output, errors = capfd.readouterr()
    codes = [each["code"] for each in json.loads(output)["findings"]]
    assert {"weights_revision", "engine"} <= {*codes}
    assert not errors


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("a:\n\tb: 1\n", "(line 2); indent with spaces"),
        ("a: *b\n", "(line 1); put a value that begins with * in quotes"),
        ("a: b: c\n", "(line 1); put a value with a colon in quotes"),
        ("a: 1\n---\nb: 2\n", "keep one document"),
        ("a: !Ref b\n", "remove the tag"),
        ("? [a]\n: 1\n", "write a text as the key"),
        ("a: &a\n  b: *a\n", "write its values out"),
        ("a: [1\n", "correct the indent and the quotes around it"),
        ("a: 1\na: 2\n", 'the key "a" has two values; keep one (line 2).'),
        ("a: \0\n", "the character U+0000 at 3, which YAML does not allow; remove it"),
        ("a: caf\xe9\n", "is not UTF-8 (byte 0xe9 at 6); save it in that encoding"),
    ],
)
def test_invalid_yaml_names_the_line_and_the_remedy(text: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError) as refusal:
        read_config(tmp_path, None)
    assert remedy in str(refusal.value)
