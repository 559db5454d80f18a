"""The checks of docs/assumptions.md's rows, against the fakes as they are and as they are not."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.fake_llm_api import (
    COUNTING,
    config_for_checkpoint,
    fake_library,
    write_checkpoint,
)
from tests.support.fake_tensorrtllm import FAKE_ENGINE, config_for, write_engine
from tests.support.lora import write_smollm2_adapter
from tests.support.paths import ROOT
from tests.support.smollm2 import smollm2_file

from trtllm_truss.machine.describe import inspect_machine
from trtllm_truss.machine.runtime import TensorRtLlm
from trtllm_workbench.cli.main import main
from trtllm_workbench.selftest.assumed_checks import CHECKS

EVIDENCE = ("run", "read", "assumed")


def page_rows() -> list[list[str]]:
    """Return the cells of the rows of docs/assumptions.md."""
    text = (ROOT / "docs/assumptions.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip(" `|") for cell in row] for row in rows]


def test_each_row_of_the_page_has_its_evidence_and_source() -> None:
    rows = page_rows()
    names = [row[0] for row in rows]
    assert len(set(names)) == len(names)
    for name, assumption, releases, evidence, source, otherwise, checked in rows:
        assert evidence in EVIDENCE, name
        assert all((assumption, releases, source, otherwise)), name
        assert checked in ("", "yes"), name
    assert {row[0] for row in rows if row[6]} == {check.row for check in CHECKS}


def test_the_page_counts_its_rows() -> None:
    found = [row[3] for row in page_rows()]
    run, read, assumed = (found.count(word) for word in EVIDENCE)
    sentence = f"Of {len(found)} rows, {run} are run, {read} read and {assumed} assumed."
    assert (ROOT / "docs/assumptions.md").read_text(encoding="utf-8").endswith(f"{sentence}\n")


def test_checks_follow_the_release() -> None:
    (check,) = (check for check in CHECKS if check.row == "logits-of-steps")
    assert [check.is_about(version) for version in ("0.18.2", "0.19.0", "1.2.1")] == [
        *(False, True, True)
    ]


def served_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Path, version: str
) -> dict[str, tuple[str, str]]:
    """Run the checks on a served model as if TensorRT-LLM were installed."""
    runtime = TensorRtLlm(version, Path(sys.executable), installed=True)
    machine = replace(inspect_machine(), runtime=runtime)
    monkeypatch.setattr("trtllm_workbench.selftest.runner.inspect_machine", lambda **_: machine)
    output = tmp_path / "report.json"
    options = ("--truss", str(ROOT), "--only", "assumptions", "--output", str(output))
    main(["selftest", "--config", str(config), *options])
    checks = json.loads(output.read_text())["checks"]
    return {
        check["check"]: (check["verdict"], check["detail"])
        for check in checks
        if check["step"] == "assumptions" and check["verdict"] != "could not run"
    }


SURE = {"batch_scheduler_policy": "guaranteed_no_evict"}
ENGINE_ROWS = {
    "longest-prompt": "a prompt of 48 tokens was answered; the limit here is 47",
    "reused-blocks": "the engine does not tell",
    "logits-of-steps": "from the prompt's logits and",
    "widths-may-differ": "Request with beam width 2 differs from the others'",
    "ranks-need-no-tcp": "1 ports beside HTTP are open on every address",
}


@pytest.mark.server
@pytest.mark.parametrize(
    "otherwise",
    [
        pytest.param((), id="as-is"),
        pytest.param(tuple(ENGINE_ROWS), id="otherwise", marks=pytest.mark.thorough),
    ],
)
def test_a_served_engine_is_asked(
    otherwise: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in FAKE_ENGINE.items():
        monkeypatch.setenv(name, value)
    limits = {"max_seq_len": 48, "max_num_tokens": 48, "max_beam_width": 2}
    limits |= {"gather_context_logits": True, "gather_generation_logits": True}
    more = {"otherwise": otherwise} if otherwise else {}
    engine = write_engine(tmp_path / "engine", limits=limits, version="1.0.0", **more)
    found = served_rows(tmp_path, monkeypatch, config_for(engine, runtime=SURE), "1.0.0")
    assert found.pop("ids-are-texts")[0] == "held"  # otherwise the warm-up fails
    _compare(found, ENGINE_ROWS, bool(otherwise))


CHECKPOINT_ROWS = {
    "max-input-len": "exceeds 1024",
    "cached-tokens": "the engine does not tell",
    "bias-is-a-tensor": "a bias of 100 for",
    "seeds": "seed 1 gave",
    "penalties": "left the answer",
    "adapters-apply": "changes the first token only",
    "context-of-the-parent": "Triton's stub uses 4000 MiB of a GPU",
}
NVIDIA_SMI = f"""#!{sys.executable}
import contextlib, os, pathlib, sys

if "--query-compute-apps=pid,used_memory" not in sys.argv:
    sys.exit(9)
for name in pathlib.Path("/proc").glob("[0-9]*/comm"):
    with contextlib.suppress(OSError):
        if name.read_text().strip() == "triton_python_b":
            otherwise = "context-of-the-parent" in os.environ["TLLM_FAKE_OTHERWISE"]
            print(f"{{name.parent.name}}, {{4000 if otherwise else 520}}")
"""
ALWAYS = {"spawn", "no-auto-completion", "end-token"}


@pytest.mark.server
@pytest.mark.parametrize(
    "otherwise",
    [
        pytest.param((), id="as-is"),
        pytest.param(tuple(CHECKPOINT_ROWS), id="otherwise", marks=pytest.mark.thorough),
    ],
)
def test_a_served_checkpoint_is_asked(
    otherwise: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**fake_library("1.2.1"), **COUNTING, "TLLM_FAKE_OTHERWISE": " ".join(otherwise)}
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    environment["PATH"] = f"{program.parent}{os.pathsep}{environment['PATH']}"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    adapter = write_smollm2_adapter(tmp_path / "adapter")
    checkpoint = write_checkpoint(tmp_path / "checkpoint", smollm2_file())
    config = config_for_checkpoint(
        checkpoint,
        lora_adapters={"sql": str(adapter)},
        runtime={"llm_args": {"sampler_type": "TRTLLMSampler"}},
    )
    found = served_rows(tmp_path, monkeypatch, config, "1.2.1")
    assert {found.pop(name)[0] for name in ALWAYS} == {"held"}
    _compare(found, CHECKPOINT_ROWS, bool(otherwise))


def _compare(found: dict[str, tuple[str, str]], rows: dict[str, str], otherwise: bool) -> None:
    assert found.keys() == rows.keys()
    for name, part in rows.items():
        outcome, detail = found[name]
        assert outcome == ("fell short" if otherwise else "held"), (name, detail)
        assert not otherwise or part in detail, (name, detail)
