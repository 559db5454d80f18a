"""The rows of the table of assumptions, against the fakes as they are and as they are not."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.fake_llm_api import (
    COUNTING,
    SITE,
    config_for_checkpoint,
    fake_library,
    write_checkpoint,
)
from tests.support.fake_tensorrtllm import FAKE_ENGINE, config_for, write_engine
from tests.support.paths import ROOT
from tests.support.smollm2 import smollm2_file

from trtllm_truss.machine.describe import inspect_machine
from trtllm_truss.machine.runtime import TensorRtLlm
from trtllm_workbench.cli.main import main
from trtllm_workbench.selftest.assumptions.run import TABLES, Outcome, Rows, find_installed
from trtllm_workbench.selftest.assumptions.served import Assumption, Installed, OfLibrary, Unchecked

ROWS = {row.id: row for _, table in TABLES for row in table}
OF_PROBE = {
    "nested-mappings": "not so: kv_cache_config may be a mapping",
    "drafts-by-kind": "not so: TorchLlmArgs takes drafts",
    "unknown-arguments": "not so: TorchLlmArgs refuses an unknown argument",
    "architectures-of-1.0": "not registered: LlamaForCausalLM",
    "architectures-of-1.2": "not registered: MiniMaxM2ForCausalLM",
    "no-field-for-long-stop-words": "SamplingParams has stop_token_sequences",
    "padded-graphs": "the largest graph has 128 of 256 requests",
}
TEXTS = (
    *("unless streaming is disabled", "Chunked context requires context FMHA, paged kv_cache"),
    *("CUDA runtime error in %s: %s", "Encountered an error in forwardAsync function: "),
    *("Request with beam width %d differs from the max beam width %d", "XGRAMMAR_CACHE_LIMIT_GB"),
    "To return generation logits, gather_generation_logits must be enabled in ExecutorConfig",
)
SOURCES = {
    "_torch/pyexecutor/mamba_cache_manager.py": """
class MambaHybridCacheManager:
    def __init__(self, kv_cache_config):
        assert not kv_cache_config.enable_block_reuse, "it must be off"
""",
    "_torch/models/checkpoints/hf/weight_loader.py": """
class HfWeightLoader:
    def load_weights(self):
        return psutil.virtual_memory().available
""",
    "_torch/pyexecutor/py_executor.py": """
class PyExecutor:
    def _validate_request(self, request):
        if not request.check_token_id_range(self.size):
            raise ValueError
""",
    "_torch/pyexecutor/model_engine.py": """
class PyTorchModelEngine:
    def _run_autotuner_warmup(self):
        cache_path = os.environ.get("TLLM_AUTOTUNER_CACHE_PATH", None)
""",
    "_torch/pyexecutor/model_loader.py": """
class ModelLoader:
    def _load_and_validate_config(self, folder):
        return ModelConfig.from_pretrained(folder, trust_remote_code=True)
""",
    "llmapi/llm.py": """
class BaseLLM:
    def _check_health(self):
        return not self._executor.is_shutdown()

    def _build_model(self):
        raise NotImplementedError

class _TorchLLM(BaseLLM):
    def _build_model(self):
        self.input_processor = create_input_processor(self.folder)
""",
    "executor/proxy.py": """
class GenerationExecutorProxy:
    def _iteration_result_task(self, queue):
        time.sleep(0.2)
        return queue.get()
""",
    "sampling_params.py": """
class SamplingParams:
    def _setup(self, tokenizer):
        if self.end_id is None:
            self.end_id = tokenizer.eos_token_id
""",
}
"""The code that the checks search for, in functions with the paths and names of 1.2.1."""

_DECIDING = re.compile(
    r"enable_block_reuse|virtual_memory|check_token_id_range|trust_remote_code|is_shutdown"
    r"|create_input_processor|end_id|sleep|TLLM_AUTOTUNER_CACHE_PATH"
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A package with the sources and texts, as of 1.2.1, and the facts of the fake."""
    folder = tmp_path_factory.mktemp("package")
    for name, source in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    library = folder / "libtensorrt_llm.so"
    library.write_bytes(b"\x7fELF\0" + "\0".join(TEXTS).encode())
    return Installed("1.2.1", folder, library)


def outcomes(rows: Rows) -> dict[str, tuple[Outcome, str]]:
    found = [*rows.of_library(), *rows.rest()]
    return {row.id: (row.outcome, row.detail) for row in found}


def probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str = "1.2.1") -> Installed:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(SITE), *sys.path)))
    monkeypatch.setenv("TLLM_FAKE_VERSION", version)
    found = find_installed(TensorRtLlm(version, Path(sys.executable), installed=True), tmp_path)
    assert found is not None
    assert found.version == version
    return found


def test_each_row_has_one_name_and_a_source() -> None:
    assert len(ROWS) == sum(len(table) for _, table in TABLES)
    assert all(row.source and row.otherwise and row.sentence for row in ROWS.values())


def test_nothing_holds_without_tensorrt_llm() -> None:
    found = outcomes(Rows(None))
    assert {outcome for outcome, _ in found.values()} == {Outcome.NOT_RUN, Outcome.NOT_CHECKED}
    assert found["stream-limit"] == (Outcome.NOT_RUN, "TensorRT-LLM is not installed")
    assert found["one-thread"] == (Outcome.NOT_CHECKED, "a race shows by chance only")


def test_the_installed_library_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcomes(Rows(probed(tmp_path, monkeypatch)))
    assert {name: found[name][0] for name in OF_PROBE} == dict.fromkeys(OF_PROBE, Outcome.HELD)
    assert found["greedy-by-default"] == (
        Outcome.SKIPPED,
        "it is about other releases: before 1.1",
    )
    assert found["stream-limit"] == (Outcome.SKIPPED, "libtensorrt_llm.so was not found")
    old = outcomes(Rows(Installed("1.2.1", facts={"problems": {"graph_sizes": "KeyError: 'x'"}})))
    assert old["padded-graphs"] == (Outcome.SKIPPED, "graph sizes: KeyError: 'x'")
    assert found["spawn"] == (Outcome.SKIPPED, "no checkpoint was served")


def test_a_library_that_is_otherwise_falls_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TLLM_FAKE_OTHERWISE", " ".join(OF_PROBE))
    found = outcomes(Rows(probed(tmp_path, monkeypatch)))
    for name, part in OF_PROBE.items():
        assert found[name][0] is Outcome.FELL_SHORT, name
        assert part in found[name][1]


def test_rows_follow_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcomes(Rows(probed(tmp_path, monkeypatch, "1.0.0")))
    assert found["greedy-by-default"][0] is Outcome.HELD
    assert found["architectures-of-1.2"][0] is Outcome.SKIPPED
    old = outcomes(Rows(Installed("0.9.0")))
    assert old["nested-mappings"] == (Outcome.SKIPPED, "this release serves no checkpoints")
    new = outcomes(Rows(Installed("1.3.0rc5")))
    assert new["stream-limit"] == (Outcome.SKIPPED, "this release serves no engines")


def of_files() -> Iterator[Assumption]:
    """Yield the rows that are checked by a source or a text."""
    for row in ROWS.values():
        if isinstance(row.check, OfLibrary) and row.check.how in (
            "the installed source",
            "a text of `libtensorrt_llm.so`",
        ):
            yield row


@pytest.mark.parametrize("row", [*of_files()], ids=lambda row: row.id)
def test_sources_and_texts_are_read(row: Assumption, installed: Installed, tmp_path: Path) -> None:
    version = (row.since or "1.0") if row.until != "0.10" else "0.9.0"
    here = replace(installed, version=version)
    assert outcomes(Rows(here))[row.id][0] is Outcome.HELD
    for name, source in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(_DECIDING.sub("other", source))
    library = tmp_path / "libtensorrt_llm.so"
    library.write_bytes(b"\x7fELF\0")
    otherwise = replace(here, folder=tmp_path, library=library)
    assert outcomes(Rows(otherwise))[row.id][0] is Outcome.FELL_SHORT
    assert outcomes(Rows(Installed(version, tmp_path / "no")))[row.id][0] is Outcome.SKIPPED


def test_an_import_that_fails_is_a_reason(tmp_path: Path) -> None:
    runtime = TensorRtLlm(
        "1.2.1", Path(sys.executable), installed=True
    )  # which has no tensorrt_llm
    found = outcomes(Rows(find_installed(runtime, tmp_path)))
    outcome, detail = found["nested-mappings"]
    assert outcome is Outcome.SKIPPED
    assert "No module named 'tensorrt_llm'" in detail


def served_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Path, version: str
) -> dict[str, tuple[str, str]]:
    """Run the rows on a served model as if TensorRT-LLM were installed."""
    runtime = TensorRtLlm(version, Path(sys.executable), installed=True)
    machine = replace(inspect_machine(), runtime=runtime)
    monkeypatch.setattr("trtllm_workbench.selftest.runner.inspect_machine", lambda **_: machine)
    output = tmp_path / "report.json"
    options = ("--truss", str(ROOT), "--only", "assumptions", "--output", str(output))
    main(["selftest", "--config", str(config), *options])
    rows = json.loads(output.read_text())["assumptions"]
    return {
        row["id"]: (row["outcome"], row["detail"])
        for row in rows
        if not isinstance(ROWS[row["id"]].check, (Unchecked, OfLibrary))
        and row["outcome"] != Outcome.SKIPPED
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
@pytest.mark.parametrize("otherwise", [(), tuple(ENGINE_ROWS)], ids=["as-is", "otherwise"])
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
ALWAYS = {"python-of-the-image", "spawn", "no-auto-completion", "end-token"}


@pytest.mark.server
@pytest.mark.parametrize("otherwise", [(), tuple(CHECKPOINT_ROWS)], ids=["as-is", "otherwise"])
def test_a_served_checkpoint_is_asked(
    otherwise: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**fake_library("1.2.1"), **COUNTING, "TLLM_FAKE_OTHERWISE": " ".join(otherwise)}
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    environment["PATH"] += f"{os.pathsep}{program.parent}"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    content = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(content))
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
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
