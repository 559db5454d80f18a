"""GPU builds up to the process boundary, with fakes of NVIDIA's tools."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.builder.checkpoints import LLAMA_3_8B
from tests.support.paths import ROOT
from tests.support.truss_process import alive
from tests.support.waiting import PATIENCE_S, settles

from trtllm_builder.jobs import builds_folder
from trtllm_builder.run import describe_failure
from trtllm_truss.engines.manifest import read_manifest
from trtllm_workbench.cli.main import main

Start = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def file(tmp_path: Path, cache: Path) -> Path:
    """A configuration for two GPUs with a checkpoint."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_3_8B))
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    return write(tmp_path / "config.yaml", {"checkpoint_repository": str(folder)})


def write(file: Path, build: dict[str, Any]) -> Path:
    content = yaml.safe_load((ROOT / "config.yaml").read_text())
    content["resources"]["accelerator"] = "H100:2"
    content["model_metadata"] = {
        "tensor_parallelism": 2,
        "build": {"max_batch_size": 8, "rotary_base": 20000.0, **build},
    }
    file.write_text(yaml.safe_dump(content))
    return file


def calls(tools: Path) -> list[str]:
    file = tools / "calls"
    return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def start(file: Path) -> Iterator[Start]:
    """Start builds in child processes, which end after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "trtllm_truss", "build", "--config", str(file)]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(command, **silent))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait(PATIENCE_S)


def waits_for_a_lock(process: subprocess.Popen[bytes]) -> bool:
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(words[1] == "->" and words[5] == str(process.pid) for words in lines)


def test_the_steps_run_as_planned(
    file: Path,
    tools: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("TRUSS_SECRET_hf_access_token", "hf_secret")
    for name in ("HF_TOKEN", "BASETEN_API_KEY", "OPENAI_API_KEY", "HUGGINGFACEHUB_API_TOKEN"):
        monkeypatch.setenv(name, "hf_secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hf_secret@proxy:3128")
    monkeypatch.setenv("NO_PROXY", "*")
    mask = os.umask(0o022)
    request.addfinalizer(lambda: os.umask(mask))
    assert main(["build", "--config", str(file)]) == 0
    output = capsys.readouterr()
    engine = Path(output.out.strip())
    assert {path.name for path in engine.iterdir()} == {
        "config.json", "rank0.engine", "rank1.engine", "tokenizer.json", "engine.manifest.json",
    }  # fmt: skip
    assert stat.S_IMODE((engine / "rank0.engine").stat().st_mode) == 0o644  # others may serve it
    manifest = read_manifest(engine)
    assert manifest is not None
    assert (manifest.world_size, manifest.tensorrt_llm_version) == (2, "1.0.0")
    assert manifest.gpu is not None
    assert manifest.gpu.dotted_capability == "9.0"
    assert calls(tools) == ["convert", "build"]
    given = json.loads((tools / "calls").read_text().splitlines()[1].split(" ", 1)[1])
    assert given[given.index("--max_batch_size") + 1] == "8"
    environment = (tools / "environment").read_text()
    assert "hf_secret" not in environment + output.err
    assert json.loads(environment)["NO_PROXY"] == "*"
    assert not (engine.parent / "converted").exists()
    assert not (engine.parent / "checkpoint").exists()
    assert main(["build", "--config", str(file)]) == 0
    assert "found the same build" in capsys.readouterr().err
    assert calls(tools) == ["convert", "build"]


def test_the_scripts_see_the_rotary_base_that_was_set(start: Start, tools: Path) -> None:
    (tools / "wait").touch()
    process = start()
    assert settles((tools / "pid").exists)
    (converted,) = builds_folder().glob("*/converted/config.json")
    assert json.loads(converted.read_text())["rope_theta"] == 20000.0
    (tools / "wait").unlink()
    assert process.wait(60) == 0


def test_a_killed_build_goes_on_where_it_was(start: Start, file: Path, tools: Path) -> None:
    (tools / "wait").touch()
    process = start()
    assert settles((tools / "pid").exists)
    process.send_signal(signal.SIGKILL)
    process.wait()
    pid = int((tools / "pid").read_text())
    assert settles(lambda: not alive({pid: "trtllm-build"}))
    (tools / "wait").unlink()
    assert main(["build", "--config", str(file)]) == 0
    assert calls(tools) == ["convert", "build", "build"]
    (rank,) = builds_folder().glob("*/engine/rank0.engine")
    assert rank.read_bytes() != b"half"


def test_two_at_once_build_once(start: Start, tools: Path) -> None:
    (tools / "wait").touch()
    processes = [start(), start()]
    assert settles((tools / "pid").exists)
    assert settles(lambda: any(map(waits_for_a_lock, processes)))
    (tools / "wait").unlink()
    assert [process.wait(60) for process in processes] == [0, 0]
    assert calls(tools) == ["convert", "build"]


def test_a_failure_is_one_sentence_and_a_log(
    file: Path, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tools / "fail").write_text("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried 2 GiB")
    assert main(["build", "--config", str(file)]) == 1
    words = capsys.readouterr().err.splitlines()[-1]
    assert "step convert failed with status 1" in words
    assert "use a larger GPU" in words
    (log,) = builds_folder().glob("*/build.log")
    assert str(log) in words
    assert "CUDA out of memory" in log.read_text()


def test_missing_tools_are_named(
    file: Path, tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENSORRT_LLM_EXAMPLES", "/nowhere")
    assert main(["build", "--config", str(file)]) == 1
    assert "v1.0.0 https://github.com/NVIDIA/TensorRT-LLM" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["build", "--config", str(file)]) == 1
    assert "25.10-trtllm-python-py3" in capsys.readouterr().err


def test_a_plan_needs_no_tools_and_no_gpu(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--config", str(file), "--plan"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("# config.json in $CHECKPOINT is changed: rope_theta = 20000.0")
    assert "trtllm-build \\\n    --checkpoint_dir $CONVERTED" in output.out
    assert "of KV cache per GPU" in output.err
    assert not builds_folder().exists()


def test_settings_without_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {"model_metadata": {"engine_repository": "org/engine"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    assert main(["build", "--config", str(tmp_path / "config.yaml")]) == 2
    assert "model_metadata.build is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "line", "part"),
    [
        (1, "OSError: [Errno 28] No space left on device", "disk is full"),
        (137, "loading shard 3", "runs out of memory"),
        (1, "ModuleNotFoundError: No module named 'modelopt'", "nvidia-modelopt"),
        (2, "convert_checkpoint.py: error: unrecognized arguments: --x", "exactly the installed"),
        (1, "ConnectionError: Couldn't reach 'cnn_dailymail' on the Hub", "huggingface.co"),
        (1, "something else", "Its output: something else"),
    ],
)
def test_failures_are_explained_by_their_cause(status: int, line: str, part: str) -> None:
    sentence = describe_failure("build", status, ["first", line], Path("/log"))
    assert part in sentence
    assert "/log" in sentence
