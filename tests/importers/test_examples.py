"""Public configurations: every option is reported, and `check` accepts the result.

`check` runs whole, against repositories on loopback whose `config.json` has the model's
architecture and whose weights have a few bytes: settings by the tables of the image's release, the
listing, the architecture, its split over GPUs, the KV cache in the accelerator's memory, the
tokenizer. What it cannot see here are the true sizes of weights, and a GPU.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import constants
from tests.engines.checkpoint.checkpoints import llama
from tests.engines.engine_configs import new_config, rank_names
from tests.fakes.hub.server import HubServer, hub_server
from tests.support.paths import ROOT

from trtllm_truss.cli.check import CheckReport, examine
from trtllm_workbench.cli.main import main
from trtllm_workbench.importers.reading import IMPORTERS, read_sources
from trtllm_workbench.importers.rules import ConversionResult, Outcome

FOLDER = Path(__file__).parent / "examples"
EXAMPLES: list[dict[str, Any]] = [
    {"kind": file.stem, **example}
    for file in sorted(FOLDER.glob("*.yaml"))
    for example in yaml.safe_load(file.read_text(encoding="utf-8"))
]
SECRETS = ("hf_secretsecretsecret", "token-abc123")
TOKENIZER = {"tokenizer.json": b"{}", "tokenizer_config.json": b'{"chat_template": "{{ x }}"}'}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "llama4": "Llama4ForConditionalGeneration",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
"""`architectures` by `model_type`."""

FIELDS = ("triton_backend", "triton_max_batch_size", "decoupled_mode")
"""Names of NVIDIA's templates for fields of config.pbtxt; others are parameters."""

each_example = pytest.mark.parametrize(
    "example", EXAMPLES, ids=[f"{each['kind']}-{n}" for n, each in enumerate(EXAMPLES)]
)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    home = tmp_path_factory.mktemp("hf-home")
    with pytest.MonkeyPatch.context() as patch, hub_server() as hub:
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        for name, value in {"HF_ENDPOINT": hub.url, "HF_HOME": str(home)}.items():
            patch.setenv(name, value)
        patch.setattr(constants, "HF_HOME", str(home))
        patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub


def written(example: Mapping[str, Any], folder: Path) -> list[str]:
    """Write an example's files; return its sources as a user names them."""
    if "fill" in example:
        for model, values in example["fill"].items():
            (folder / "models" / model).mkdir(parents=True)
            (folder / "models" / model / "config.pbtxt").write_text(pbtxt(model, values))
        return [str(folder / "models")]
    sources = [example["command"]] if "command" in example else []
    if "lines" in example:
        (folder / "settings.env").write_text(example["lines"])
        sources.append(str(folder / "settings.env"))
    for name, content in example.items():
        if name.endswith((".yaml", ".yml")):
            (folder / name).write_text(yaml.safe_dump(content))
            sources.append(str(folder / name))
    return sources


def pbtxt(model: str, values: Mapping[str, Any]) -> str:
    """Return a config.pbtxt as NVIDIA's template becomes with these values."""
    lines = [f'name: "{model}"', f'backend: "{values.get("triton_backend", "python")}"']
    lines.append(f"max_batch_size: {values.get('triton_max_batch_size', 1)}")
    if "decoupled_mode" in values:
        lines.append(
            f"model_transaction_policy {{ decoupled: {values['decoupled_mode']} }}".lower()
        )
    for name, value in parameters(values):
        lines.append(f'parameters: {{ key: "{name}" value: {{ string_value: "{value}" }} }}')
    count = next((v for k, v in values.items() if k.endswith("_instance_count")), 1)
    return "\n".join([*lines, f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]", ""])


def parameters(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in values.items()
        if name not in FIELDS and not name.endswith("_instance_count")
    ]


def expected_options(example: Mapping[str, Any]) -> set[str]:
    """List the options that must be reported, without the importers' readers."""
    names: set[str] = set()
    for model, values in example.get("fill", {}).items():
        names |= {f"{model}.{name}" for name, _ in parameters(values)}
        names |= {f"{model}.backend", f"{model}.max_batch_size", f"{model}.instance_group"}
        names |= {f"{model}.decoupled"} & {f"{model}.{'decoupled' * ('decoupled_mode' in values)}"}
    for line in example.get("lines", "").splitlines():
        if not line.startswith("#"):
            names.add(line.partition("=")[0])
    for name, content in example.items():
        if name.endswith((".yaml", ".yml")):
            names |= set(leaves(content))
    command = example.get("command", "").replace("\\\n", " ")
    for line in command.splitlines():
        words = shlex.split(line, comments=True)
        words = shlex.split(words[2]) if words[:2] == ["sh", "-c"] else words
        is_server = any("trtllm-serve" in word for word in words)
        is_export = line.startswith("export ")
        for before, word in zip(["", *words], words, strict=False):
            is_variable = re.match(r"[A-Z_]+=", word) and (is_server or is_export)
            is_option = is_server and word.startswith("-") and word not in ("-e", "--env", "-m")
            if before in ("-e", "--env") or is_variable or is_option:
                names.add(word.partition("=")[0])
    return names


def leaves(content: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def converted(example: Mapping[str, Any], folder: Path) -> ConversionResult:
    found = read_sources(written(example, folder))
    assert found.kind == example["kind"]
    result = found.convert("1.2.1" if found.kind != "triton" else "1.0.0")
    spellings = {part for row in result.rows for part in row.spelling.split(", ")}
    spellings |= set(found.ignored)
    launchers = [row.value for row in result.rows if row.spelling == "mpirun"]
    spellings |= set(" ".join(launchers).split())
    silent = [
        name
        for name in expected_options(example)
        if not any(name == each or name.startswith(f"{each}.") for each in spellings)
    ]
    assert not silent
    return result


@each_example
def test_no_option_is_silent(example: dict[str, Any], tmp_path: Path) -> None:
    result = converted(example, tmp_path)
    assert all(row.detail for row in result.rows)
    unknown = [row.spelling for row in result.rows if row.outcome is Outcome.UNKNOWN]
    assert unknown == example.get("unknown", [])


@each_example
def test_check_accepts_what_is_written(
    example: dict[str, Any],
    hub: HubServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "written.yaml"
    command = ["import", *written(example, tmp_path), "--truss", str(ROOT), "--output", str(output)]
    status = main(command)
    shown = capsys.readouterr()
    reason = example.get("refused")
    if reason and status == 2:
        assert reason in shown.err
        return
    assert status == 0, shown.err
    text = output.read_text()
    assert not [secret for secret in SECRETS if secret in text + shown.err + shown.out]
    report = checked(example, yaml.safe_load(text), hub, tmp_path)
    errors = [found.message for found in report.findings if found.severity.value == "error"]
    if reason:
        assert reason in " ".join(errors)
    else:
        assert not errors


def checked(
    example: Mapping[str, Any], config: dict[str, Any], hub: HubServer, folder: Path
) -> CheckReport:
    """Run `check` with the example's model on the Hub; folders of its machine are here."""
    metadata = config["model_metadata"]
    build = metadata.get("build", {})
    for section, key in (
        (metadata, "engine_repository"),
        (build, "checkpoint_repository"),
        (metadata, "tokenizer_repository"),
    ):
        name = section.get(key)
        if name is None:
            continue
        files = model_files(example) if key != "tokenizer_repository" else TOKENIZER
        if name.startswith("/"):
            section[key] = str(folder / key)
            write_files(folder / key, files)
            metadata.pop("engine_revision", None)
        else:
            revision = section.get(key.replace("repository", "revision"), "main")
            if revision.startswith("refs/"):  # the Hub of tests has no pull requests
                revision = section[key.replace("repository", "revision")] = "main"
            add(hub, name, files, revision)
    (folder / "checked.yaml").write_text(yaml.safe_dump(config))
    return examine(ROOT, folder / "checked.yaml")


def add(hub: HubServer, name: str, files: Mapping[str, bytes], revision: str) -> None:
    repository = hub.repositories.get(name) or hub.add(name, files)
    commit = repository.commit(files, revision=revision)
    if re.fullmatch("[0-9a-f]{40}", revision):
        repository.commits[revision] = repository.commits[commit]


def model_files(example: Mapping[str, Any]) -> dict[str, bytes]:
    if example["kind"] == "triton":
        config = new_config("1.0.0")
        engines = dict.fromkeys(rank_names(config), b"engine")
        return {"config.json": json.dumps(config).encode(), **engines}
    kind = example["model"]
    config = llama(
        architectures=[ARCHITECTURES[kind]],
        model_type=kind,
        max_position_embeddings=1 << 20,
        num_attention_heads=64,
        num_key_value_heads=16,
        num_hidden_layers=4,
    )
    return {"config.json": json.dumps(config).encode(), "model.safetensors": b"w", **TOKENIZER}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def test_every_kind_has_examples() -> None:
    assert {example["kind"] for example in EXAMPLES} == set(IMPORTERS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example["source"]))
def test_each_has_its_source_and_the_state_in_which_it_was_read(example: Mapping[str, Any]) -> None:
    """A commit or a date; `assumed` where no source has the example as a whole."""
    assert example["source"]
    assert re.fullmatch(r"assumed|[0-9a-f]{7,8}( of .*)?|20\d\d-\d\d-\d\d.*", str(example["read"]))
