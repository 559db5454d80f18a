"""The rules of all servers, and sources that are ambiguous, wrong or contain secrets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from tests.engines.checkpoint.checkpoints import llama
from tests.engines.engine_configs import new_config, rank_names
from tests.fakes.hub.server import HubServer
from tests.scaffold.conftest import TOKENIZER, Initialize
from tests.support.paths import ROOT

from trtllm_truss.engines.images import IMAGES
from trtllm_truss.settings.build import Build
from trtllm_truss.settings.model import PLATFORM_KEYS, Serving, Settings
from trtllm_workbench.cli.main import main
from trtllm_workbench.importers.command_lines import DOCKER
from trtllm_workbench.importers.reading import IMPORTERS, read_sources
from trtllm_workbench.importers.rules import TOP, Outcome, Row, json_value

SECRET = "hf_abcdefghijklmnop"

Import = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture
def run_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Import:
    """Run `import`; return its status, its report and the written file."""

    def run(*arguments: str) -> tuple[int, str, dict[str, Any]]:
        status = main(["import", *arguments, "--truss", str(ROOT)])
        shown = capsys.readouterr()
        return status, shown.err, yaml.safe_load(shown.out) or {}

    return run


def rows_of(*sources: str, version: str | None = "1.2.1") -> dict[str, Row]:
    return {row.spelling: row for row in read_sources(sources).convert(version).rows}


def file_of(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize("kind", IMPORTERS)
def test_a_rule_has_a_target_that_exists_or_a_reason(kind: str) -> None:
    sections: dict[str, type[BaseModel]] = {"build": Build, "serving": Serving}
    for rule in IMPORTERS[kind].table.rules.values():
        assert rule.target if rule.outcome is Outcome.MAPPED else rule.reason, rule.name
        for target in filter(None, (rule.target, rule.prebuilt, rule.checkpoint)):
            first, _, rest = target.partition(".")
            known = first in {*Settings.model_fields, *PLATFORM_KEYS}
            assert known or target.startswith(TOP), rule.name
            if first in sections:
                assert rest.split(".")[0] in sections[first].model_fields, rule.name


@pytest.mark.parametrize("kind", IMPORTERS)
def test_an_option_has_one_rule(kind: str) -> None:
    table = IMPORTERS[kind].table
    names = [
        name
        for section in table.sections.values()
        for rule in section
        for name in (rule.name, *rule.aliases)
    ]
    assert sorted(names) == sorted(set(names))
    assert not set(names) & set(DOCKER)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("docker run -v ~/.cache/vllm:/root nvcr.io/x trtllm-serve org/model", "trtllm-serve"),
        ('bash -c "cd /app && trtllm-serve serve org/model --tp_size 2"', "trtllm-serve"),
        ("srun -N 2 trtllm-llmapi-launch trtllm-serve org/model --tp_size 16", "trtllm-serve"),
    ],
)
def test_the_kind_of_a_command(source: str, kind: str) -> None:
    found = read_sources([source])
    assert found.kind == kind
    assert found.convert("1.2.1").metadata["engine_repository"] in ("org/model", "org/m")


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("config.yaml", "trt_llm: {build: {checkpoint_repository: {repo: a/b}}}", "baseten"),
        ("serve.yml", "kv_cache_config: {dtype: fp8}\ncuda_graph_config: null\n", "trtllm-serve"),
        ("lmi.env", "HF_MODEL_ID=a/b\nOPTION_DTYPE=fp16\n", "lmi"),
        (
            "start.sh",
            "#!/bin/bash\npip install vllm\nexec trtllm-serve a/b > log 2>&1 &\n",
            "trtllm-serve",
        ),
    ],
)
def test_the_kind_of_a_file(name: str, text: str, kind: str, tmp_path: Path) -> None:
    assert read_sources([file_of(tmp_path, name, text)]).kind == kind


@pytest.mark.parametrize(
    ("sources", "part"),
    [
        (["nowhere.yaml"], "SOURCE is 'nowhere.yaml', which is no file, no folder and no command"),
        (["trtllm-serve 'a/b"], "no closing quotation); correct its quotes"),
        (["trtllm-serve a/b --max_seq_len"], "--max_seq_len has no value; write one after it"),
        (["trtllm-serve a/b --max_seq_len many"], "--max_seq_len is 'many'; it must be a number"),
        (["trtllm-serve a/b --speculative_config '{x'"], "it must be valid JSON"),
        (["trtllm-serve $MODEL"], "MODEL is '$MODEL', with a variable that nothing here sets"),
        (["trtllm-serve a/b; trtllm-serve c/d"], "starts 2 servers; keep the one to import"),
        (["trtllm-serve --tp_size 2"], "name no model that can be read; name it with"),
        (["trtllm-serve a/b --config x.yaml"], "--config is 'x.yaml', which is no file here"),
        (["trtllm-serve a/b", "trtllm-serve c/d"], "the sources start several servers"),
        (
            ["vllm serve a/b -tp 2"],
            "the command is vLLM's or TGI's, whose options",
        ),
        (["python3 -m vllm.entrypoints.openai.api_server --model a/b"], "is vLLM's or TGI's"),
        (["docker run --gpus all vllm/vllm-openai:v0.10 --model a/b"], "is vLLM's or TGI's"),
        (["text-generation-launcher --model-id a/b"], "is vLLM's or TGI's"),
        (["docker run ghcr.io/huggingface/text-generation-inference -x a"], "is vLLM's or TGI's"),
        (["trtllm-serve disaggregated -c x.yaml"], "the command is `trtllm-serve disaggregated`"),
        (["trtllm-serve a/b --tp_size 0"], "tensor_parallelism is 0; it must be at least 1"),
        (["."], "holds no model tensorrt_llm (tensorrt_llm/config.pbtxt)"),
    ],
)
def test_a_wrong_source_is_named(
    sources: list[str],
    part: str,
    run_import: Import,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, report, _ = run_import(*sources)
    assert status == 2
    assert part in report


ALIASES = "a0: &a0 [1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
"""400 bytes, and nine times as many values with each line."""


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("a.yaml", "- 1\n", "is not a mapping of options"),
        ("a.yaml", "a: [\n", "is not valid YAML (line 2)"),
        ("a.yaml", "colour: red\n", "is of no kind that its options tell; name it with --kind"),
        ("a.yaml", "", "is not a mapping of options"),
        ("a.yaml", ALIASES, "has more than 100,000 values, aliases written out"),
        ("a.yaml", "a: &a [*a]\n", "an alias contains itself"),
        ("a.yaml", "a: " + "[" * 100_000, "is nested more than 64 levels deep"),
        ("a.json", '{"a":' * 100_000, "is nested more than 64 levels deep"),
        ("a.yaml", "a: 1\n" + "#" * (1 << 20), "too many for settings"),
        ("a.env", "MODEL_ID\n", "line 1 is not key=value"),
        ("a.env", "\n", "has no options to import"),
    ],
)
def test_a_wrong_file_is_named(
    name: str, text: str, part: str, run_import: Import, tmp_path: Path
) -> None:
    status, report, _ = run_import(file_of(tmp_path, name, text))
    assert status == 2
    assert part in report


def test_a_template_that_is_not_filled_in(run_import: Import, tmp_path: Path) -> None:
    for model in ("tensorrt_llm", "ensemble"):
        (tmp_path / model).mkdir()
        file_of(tmp_path / model, "config.pbtxt", "max_batch_size: ${triton_max_batch_size}\n")
    status, report, _ = run_import(str(tmp_path))
    assert status == 2
    assert "has ${triton_max_batch_size}, a placeholder of NVIDIA's template; fill it in" in report


@pytest.mark.parametrize(
    "source",
    [
        f"trtllm-serve a/b --api-key {SECRET}",
        f"HF_TOKEN={SECRET} trtllm-serve a/b",
        f"export MY_PASSWORD={SECRET}\ntrtllm-serve a/b",
        f"trtllm-serve a/b --chat_template https://user:{SECRET}@host/x --dtype {SECRET}",
        f"NCCL_SECRET={SECRET} trtllm-serve a/b --tokenizer {SECRET}",
        f"trtllm-serve a/b --max_seq_len {SECRET}",
    ],
)
def test_no_secret_is_printed_or_written(source: str, run_import: Import) -> None:
    _, report, config = run_import(source)
    assert SECRET not in report + str(config)


def test_secrets_of_a_config_yaml(run_import: Import, tmp_path: Path) -> None:
    content = {
        "trt_llm": {"build": {"checkpoint_repository": {"source": "HF", "repo": "a/b"}}},
        "secrets": {"hf_access_token": SECRET},
        "environment_variables": {"API_KEY": "tomato", "URL": f"https://x:{SECRET}@host"},
    }
    status, report, config = run_import(file_of(tmp_path, "config.yaml", yaml.safe_dump(content)))
    assert status == 0
    assert config["secrets"] == {"hf_access_token": None}
    assert SECRET not in report + str(config)
    assert "tomato" not in report + str(config)


def test_precedence_of_each_server(tmp_path: Path) -> None:
    file = file_of(tmp_path, "a.yaml", "max_num_tokens: 1\n")
    serve = read_sources(["trtllm-serve a/b --max_num_tokens 2", file])
    assert {option.name: option.value for option in serve.given}["max_num_tokens"] == "1"
    assert serve.ignored == ["--max_num_tokens"]


def test_a_file_beside_the_command_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file_of(tmp_path, "a.yaml", "max_seq_len: 4096\n")
    found = read_sources(["trtllm-serve a/b --config a.yaml"])
    assert found.convert(None).metadata["runtime"] == {"llm_args": {"max_seq_len": 4096}}


@pytest.mark.parametrize(
    ("arguments", "outcome", "part"),
    [
        ({"enable_iter_perf_stats": True}, Outcome.NOT_NEEDED, "metrics of its own"),
        ({"enable_iter_req_stats": True}, Outcome.NOT_NEEDED, "metrics of its own"),
        ({"max_stats_len": 9}, Outcome.NOT_NEEDED, "metrics of its own"),
        ({"kv_cache_config": {"event_buffer_max_size": 9}}, Outcome.NOT_NEEDED, "--kv-events"),
        ({"kv_cache_config": {"tokens_per_block": 64}}, Outcome.UNSUPPORTED, "1.1 and later"),
        ({"moe_config": {"disable_finalize_fusion": True}}, Outcome.UNSUPPORTED, "1.1 and later"),
        (
            {"speculative_config": {"decoding_type": "NGram"}},
            Outcome.UNSUPPORTED,
            "max_draft_len is missing; NGram needs it",
        ),
        (
            {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 3}},
            Outcome.MAPPED,
            "runtime.llm_args.speculative_config",
        ),
    ],
)
def test_arguments_of_trtllm_serve(
    arguments: dict[str, Any], outcome: Outcome, part: str, tmp_path: Path
) -> None:
    file = file_of(tmp_path, "a.yaml", yaml.safe_dump(arguments))
    result = read_sources(["trtllm-serve a/b", file]).convert("1.0.0")
    assert result.rows[-1].outcome is outcome
    assert part in result.rows[-1].detail
    assert ("runtime" in result.metadata) == (outcome is Outcome.MAPPED)


def test_unknown_options_are_named_with_a_neighbour() -> None:
    row = rows_of("trtllm-serve a/b --max_sek_len 3 --frobnicate")["--max_sek_len"]
    assert row.outcome is Outcome.UNKNOWN
    assert row.detail.endswith("did you mean max_seq_len?")


@pytest.mark.parametrize(
    ("source", "parser"),
    [
        ("trtllm-serve a/b --tool_parser kimi_k2", "kimi_k2"),
        ("trtllm-serve a/b --tool_parser deepseekv3.1", "deepseek_v31"),
        ("trtllm-serve a/b --tool_parser qwen3", "hermes"),
        ("trtllm-serve a/b --tool_parser poolside_v1", "glm45"),
        ("trtllm-serve a/b --tool_parser xing4_0", "telechat4"),
    ],
)
def test_parsers_of_calls_have_other_names(source: str, parser: str) -> None:
    values = read_sources([source]).convert("1.2.1").metadata
    assert values["serving"]["tool_parser"] == parser


@pytest.mark.parametrize(
    ("source", "parser"),
    [
        ("trtllm-serve a/b --reasoning_parser nano-v3", "qwen3"),
        ("trtllm-serve a/b --reasoning_parser deepseek-r1", "deepseek_r1"),
        ("trtllm-serve a/b --reasoning_parser kimi_k3", "kimi_k3"),
    ],
)
def test_parsers_of_reasoning_have_other_names(source: str, parser: str) -> None:
    values = read_sources([source]).convert("1.2.1").metadata
    assert values["serving"]["reasoning_parser"] == parser


def test_a_prompt_with_dollars_is_no_variable(tmp_path: Path) -> None:
    example = {"messages": [{"role": "user", "content": "Is $x$ worth $1?"}]}
    content = {
        "trt_llm": {"build": {"checkpoint_repository": {"source": "HF", "repo": "a/b"}}},
        "model_metadata": {"example_model_input": example},
    }
    file = file_of(tmp_path, "config.yaml", yaml.safe_dump(content))
    assert read_sources([file]).convert(None).metadata["example_model_input"] == example


def test_escapes_of_json_survive() -> None:
    assert json_value('{"a": "\\\\boxed{} \\/ \\ud83d\\ude00"}') == {"a": "\\boxed{} / \U0001f600"}


def test_arguments_of_another_release() -> None:
    rows = rows_of("trtllm-serve a/b", version="1.0.0")
    assert rows["MODEL"].outcome is Outcome.MAPPED
    row = rows_of("trtllm-serve a/b --otlp_traces_endpoint http://x", version="1.0.0")
    assert "of TensorRT-LLM 1.2 and later; the image has 1.0.0" in str(
        row["--otlp_traces_endpoint"].detail
    )


def test_variables_for_the_engine_keep_their_names() -> None:
    found = read_sources(["TRTLLM_ENABLE_PDL=1 trtllm-serve a/b"])
    assert found.convert("1.2.1").config == {"environment_variables": {"TRTLLM_ENABLE_PDL": "1"}}


def test_a_model_of_the_model_cache_is_named_by_its_repository(tmp_path: Path) -> None:
    content = {
        "model_cache": [{"repo_id": "a/b", "revision": "v1", "volume_folder": "m"}],
        "trt_llm": {
            "inference_stack": "v2",
            "build": {"checkpoint_repository": {"source": "HF", "repo": "x/empty"}},
            "runtime": {"patch_kwargs": {"model_path": "/app/model_cache/m"}},
        },
    }
    file = file_of(tmp_path, "config.yaml", yaml.safe_dump(content))
    metadata = read_sources([file]).convert("1.2.1").metadata
    assert metadata == {"engine_repository": "a/b", "engine_revision": "v1"}


def test_the_model_can_be_named_beside_a_yaml(run_import: Import, tmp_path: Path) -> None:
    file = file_of(tmp_path, "a.yaml", "kv_cache_config: {dtype: fp8}\nmax_batch_size: 8\n")
    status, _, config = run_import(file, "--engine", "org/model")
    assert status == 0
    assert config["model_metadata"]["engine_repository"] == "org/model"
    assert config["base_image"]["image"] == IMAGES[-1].name


def test_an_engine_that_is_here_decides_over_its_parameters(
    run_import: Import, tmp_path: Path
) -> None:
    engine = tmp_path / "llama-engine"
    engine.mkdir()
    config = new_config("0.20.0", tp=2)
    (engine / "config.json").write_text(json.dumps(config))
    for name in rank_names(config):
        (engine / name).write_bytes(b"engine")
    (tmp_path / "repository/tensorrt_llm").mkdir(parents=True)
    folder = str(tmp_path / "repository")

    def name(path: Path) -> None:
        text = f'parameters {{ key: "gpt_model_path" value {{ string_value: "{path}" }} }}'
        file_of(tmp_path / "repository/tensorrt_llm", "config.pbtxt", text)

    name(engine)
    status, report, content = run_import(folder)
    assert status == 0
    assert content["model_metadata"]["tensor_parallelism"] == 2
    assert "tritonserver:25.07-" in content["base_image"]["image"]
    assert content["resources"]["accelerator"] == "H100:2"
    assert content["model_name"] == "llama-engine"
    assert content["description"] == "A TensorRT-LLM engine behind Triton."
    assert "next: save it as config.yaml of a Truss, then trtllm-truss check" in report
    name(Path("/engines/llama"))
    _, report, content = run_import(folder)
    assert "/engines/llama is not a folder here, so its engine was not read" in report
    assert content["model_name"] == "llama"
    _, _, content = run_import("trtllm-serve org/name")
    assert content["model_name"] == "name"
    assert content["description"] == "A checkpoint in TensorRT-LLM's LLM API behind Triton."


def test_words_that_are_not_options(run_import: Import, tmp_path: Path) -> None:
    assert "no command of" in run_import("trtllm-serve", "serve", "a/b")[1]
    assert "quote the whole command." in run_import("trtllm-serve", "serve", "a/b")[1]
    truss = file_of(tmp_path, "config.yaml", "model_metadata: {engine_repository: a/b}")
    assert "so there is nothing to convert; check it with" in run_import(truss)[1]
    notes = file_of(tmp_path, "notes.txt", "hello")
    assert "line 1 is not key=value, as in serving.properties" in run_import(notes)[1]


def test_without_a_truss_init_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "trtllm-serve a/b", "--truss", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "name the Truss's folder with --truss, or write one: trtllm-truss init" in told


def test_init_writes_a_truss_from_a_command(hub: HubServer, initialize: Initialize) -> None:
    add_model(hub)
    written = initialize(f"HF_TOKEN={SECRET} trtllm-serve org/model --max_seq_len 4000 --foo 1")
    assert written.metadata["engine_repository"] == "org/model"
    assert written.metadata["runtime"]["llm_args"] == {"max_seq_len": 4000}
    assert "--foo=1: unknown to `trtllm-serve`'s documentation" in written.printed
    assert SECRET not in written.printed + written.text + written.readme
    assert "a command of `trtllm-serve`" in " ".join(written.readme.split())


def test_init_takes_the_accelerator_and_all_else_of_baseten(
    hub: HubServer, initialize: Initialize, tmp_path: Path
) -> None:
    add_model(hub)
    content = {
        "model_name": "Mine",
        "model_metadata": {"example_model_input": {"prompt": "x"}, "tags": ["a"]},
        "resources": {"accelerator": "H100:2", "node_count": 1, "memory": "10Gi"},
        "environment_variables": {"TRTLLM_ENABLE_PDL": "1"},
        "runtime": {"predict_concurrency": 7},
        "trt_llm": {
            "inference_stack": "v2",
            "build": {"checkpoint_repository": {"source": "HF", "repo": "org/model"}},
            "runtime": {"tensor_parallel_size": 2, "max_seq_len": 2048},
        },
    }
    written = initialize(file_of(tmp_path, "config.yaml", yaml.safe_dump(content)))
    assert written.config["model_name"] == "Mine"
    resources = {"accelerator": "H100:2", "use_gpu": True, "node_count": 1}
    assert written.config["resources"] == resources
    assert written.config["environment_variables"]["TRTLLM_ENABLE_PDL"] == "1"
    assert written.config["runtime"]["predict_concurrency"] == 7
    assert written.metadata["example_model_input"] == {"prompt": "x"}
    assert written.metadata["tags"] == ["a"]
    assert written.metadata["tensor_parallelism"] == 2


def add_model(hub: HubServer) -> None:
    config = json.dumps(llama()).encode()
    hub.add("org/model", {"config.json": config, "model.safetensors": b"w", **TOKENIZER})
