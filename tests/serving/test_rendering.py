"""The rendered model repository, by settings and engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.engines.checkpoint.checkpoints import write_checkpoint
from tests.fakes.triton import write_engine
from tests.support.paths import ROOT
from tokenizers import AddedToken, Tokenizer, models

from trtllm_truss.configuration import load_configuration
from trtllm_truss.engines.deployment import Deployment
from trtllm_truss.engines.kinds import inspect_engine, with_settings
from trtllm_truss.errors import SettingsError
from trtllm_truss.inference.preprocessing import Capabilities
from trtllm_truss.serving.preparation import render_engine
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.settings.model import Settings
from trtllm_truss.settings.runtime import RuntimeOptions
from trtllm_truss.triton.model_repository import read_config

DATA = ROOT / "data"
GUIDED = {"guided_decoding_backend": "xgrammar"}


@pytest.fixture
def engine_folder(tmp_path: Path) -> Path:
    """Build an engine with beams and a tokenizer; no token has the id 2."""
    folder = write_engine(tmp_path / "engine", limits={"max_beam_width": 4})
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "größe": 1, "b": 3, "</s>": 4}, "<unk>"))
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    return folder


def render(
    folder: Path, runtime: dict[str, Any], version: str = "1.0.0"
) -> tuple[Any, dict[str, str], Path]:
    """Return the rendered configuration, its parameters, and their folder."""
    metadata = {"engine_repository": str(folder), "runtime": runtime}
    settings = parse_settings({"model_metadata": metadata})
    out = folder.parent / "repository"
    engine = inspect_engine(folder)
    render_engine(settings, engine, DATA, out, version, engine.tokenizer_folder, {})
    config = read_config(out / "tensorrt_llm" / "config.pbtxt")
    given = {name: value.string_value for name, value in config.parameters.items()}
    return config, {name: value for name, value in given.items() if value}, out / "tensorrt_llm"


def test_several_hosts(tmp_path: Path) -> None:
    """A rank's GPU is its place on its host, whatever the build assumed."""
    folder = write_engine(tmp_path / "engine", tp=4)
    settings = parse_settings(
        {
            "model_metadata": {
                **{"engine_repository": str(folder), "tensor_parallelism": 4, "nodes": 2},
                "runtime": {"gpu_device_ids": "2,3"},
            }
        }
    )
    for given, devices in ((settings, "2,3"), (without_runtime(settings), "0,1")):
        out = tmp_path / devices
        engine = inspect_engine(folder)
        render_engine(given, engine, DATA, out, "1.0.0", engine.tokenizer_folder, {})
        parameters = read_config(out / "tensorrt_llm" / "config.pbtxt").parameters
        assert parameters["num_nodes"].string_value == "2"
        assert parameters["gpu_device_ids"].string_value == devices


def without_runtime(settings: Settings) -> Settings:
    return settings.model_copy(update={"runtime": RuntimeOptions()})


def test_guided_decoding_writes_the_vocabulary(engine_folder: Path) -> None:
    _, parameters, folder = render(engine_folder, GUIDED)
    path = Path(parameters["xgrammar_tokenizer_info_path"])
    info = json.loads(path.read_text(encoding="utf-8"))

    assert path == folder / "xgrammar_tokenizer_info.json"
    assert parameters["guided_decoding_backend"] == "xgrammar"
    assert info["encoded_vocab"] == ["<unk>", "größe", "", "b", "</s>"]
    assert info["stop_token_ids"] == [4]
    assert Tokenizer.from_str(info["tokenizer_str"]).token_to_id("größe") == 1


@pytest.mark.parametrize(
    "runtime", [{}, {**GUIDED, "xgrammar_tokenizer_info_path": "/somewhere/info.json"}]
)
def test_the_vocabulary_is_written_only_if_needed(
    engine_folder: Path, runtime: dict[str, str]
) -> None:
    _, parameters, folder = render(engine_folder, runtime)
    named = runtime.get("xgrammar_tokenizer_info_path")

    assert parameters.get("xgrammar_tokenizer_info_path") == named
    assert sorted(path.name for path in folder.iterdir()) == ["1", "config.pbtxt"]


def test_rendering_follows_the_runtime_version(engine_folder: Path) -> None:
    config, _, _ = render(engine_folder, {}, "0.18.2")

    names = {field.name for field in config.input}
    assert {"min_length", "random_seed"} <= names
    assert not {"min_tokens", "seed", "guided_decoding_guide"} & names
    metadata = {"engine_repository": str(engine_folder), "runtime": GUIDED}
    with pytest.raises(SettingsError, match="guided_decoding_backend is a parameter of TensorRT-L"):
        load_configuration({"model_metadata": metadata}, "0.18.2")


@pytest.mark.parametrize(("runtime", "width"), [({}, 4), ({"max_beam_width": 1}, 1)])
def test_max_beam_width_defaults_to_the_engines(
    engine_folder: Path, runtime: dict[str, int], width: int
) -> None:
    settings = parse_settings(
        {"model_metadata": {"engine_repository": str(engine_folder), "runtime": runtime}}
    )
    _, parameters, _ = render(engine_folder, runtime)

    assert inspect_engine(engine_folder).beam_limit(settings) == width
    assert parameters["max_beam_width"] == str(width)
    assert "decoding_mode" not in parameters
    assert "max_beam_width" not in render(engine_folder, {}, "0.5.0")[1]


def test_log_probabilities_are_those_of_the_model_unless_the_operator_differs(
    engine_folder: Path,
) -> None:
    assert render(engine_folder, {})[1]["normalize_log_probs"] == "false"
    chosen = render(engine_folder, {"normalize_log_probs": True})[1]
    assert chosen["normalize_log_probs"] == "true"
    assert "normalize_log_probs" not in render(engine_folder, {}, "0.7.1")[1]


def test_a_checkpoint(engine_folder: Path) -> None:
    folder = write_checkpoint(engine_folder.parent / "checkpoint")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((engine_folder / name).read_bytes())
    runtime = {
        **GUIDED,
        "kv_cache_free_gpu_mem_fraction": 0.8,
        "cancellation_check_period_ms": 50,
        "llm_args": {"max_seq_len": 4096, "kv_cache_config": {"dtype": "fp8"}},
    }
    metadata = {
        "engine_repository": str(folder),
        "tensor_parallelism": 2,
        "pipeline_parallelism": 2,
        "runtime": runtime,
    }
    settings = parse_settings({"model_metadata": metadata})
    engine = with_settings(inspect_engine(folder), settings)
    assert (engine.world_size, engine.server_ranks) == (4, 1)
    out = folder.parent / "repository"
    render_engine(settings, engine, DATA, out, "1.2.1", engine.tokenizer_folder, {})
    config = read_config(out / "tensorrt_llm" / "config.pbtxt")
    parameters = {name: value.string_value for name, value in config.parameters.items()}
    arguments = json.loads(parameters.pop("llm_args"))

    assert config.backend == "llm_api"
    assert config.max_batch_size == 256
    assert parameters == {
        "gpt_model_path": str(folder),
        "tokenizer_dir": str(folder),
        "cancellation_check_period_ms": "50",
        "hang_timeout_s": "120",
        "vocab_size": "128256",
    }
    assert arguments == {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2,
        "max_batch_size": 256,
        "max_num_tokens": 8192,
        "max_seq_len": 4096,
        "max_input_len": 4095,
        "max_beam_width": 1,
        "enable_chunked_prefill": True,
        "guided_decoding_backend": "xgrammar",
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": 256},
        "kv_cache_config": {
            "free_gpu_memory_fraction": 0.8,
            "enable_block_reuse": True,
            "dtype": "fp8",
        },
    }
    assert (out / "tensorrt_llm/xgrammar_tokenizer_info.json").is_file()


@pytest.mark.parametrize(
    ("paged", "runtime", "policy", "chunks"),
    [
        (True, {}, "max_utilization", "true"),
        (False, {}, "guaranteed_no_evict", None),
        (False, {"batch_scheduler_policy": "max_utilization"}, "max_utilization", None),
        (True, {"enable_chunked_context": False}, "guaranteed_no_evict", "false"),
    ],
)
def test_the_scheduling_follows_the_engine(
    tmp_path: Path, paged: bool, runtime: dict[str, Any], policy: str, chunks: str | None
) -> None:
    """The executor refuses long streams that it may evict and cannot read in chunks again."""
    folder = write_engine(tmp_path / "engine", plugins={"use_paged_context_fmha": paged})
    _, parameters, _ = render(folder, runtime)
    assert parameters["batch_scheduler_policy"] == policy
    assert parameters.get("enable_chunked_context") == chunks


@pytest.mark.parametrize(
    ("version", "runtime", "width", "first"),
    [("1.0.0", {}, 4, 1), ("0.9.0", {}, 1, 1), ("0.9.0", {"max_beam_width": 4}, 4, 4)],
)
def test_old_releases_have_one_beam_unless_set(
    tmp_path: Path, version: str, runtime: dict[str, Any], width: int, first: int
) -> None:
    """Such a release refuses requests of another width, the warm-up included."""
    limits = {"max_beam_width": 4}
    folder = write_engine(tmp_path / "engine", limits=limits, version=version)
    _, parameters, _ = render(folder, runtime, version)
    assert parameters["max_beam_width"] == str(width)
    metadata = {"engine_repository": str(folder), "runtime": runtime}
    settings, engine = parse_settings({"model_metadata": metadata}), inspect_engine(folder)
    assert engine.first_beam_width(settings) == first
    capabilities = Capabilities.of(Deployment(settings, engine))
    assert capabilities.one_beam_width is (version == "0.9.0")
