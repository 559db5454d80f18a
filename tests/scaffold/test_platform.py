"""Baseten's keys: what `init` writes, what `check` says about them, and that Truss reads them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.engines.checkpoint.checkpoints import GB, llama, write_checkpoint
from tests.engines.engine_configs import (
    Json,
    config_0_9,
    config_0_12,
    config_0_18,
    new_config,
    old_config,
)
from tests.fakes.hub.server import HubServer
from tests.fakes.s3.server import S3Server
from tests.scaffold.conftest import TOKENIZER, Initialize
from tests.scaffold.test_init import TOKEN, in_memory, write
from tests.support.lora import adapter_files
from tests.support.model_module import truss_config
from tests.support.warm_python import run_warm

from trtllm_truss.cli.baseten import Need
from trtllm_truss.cli.check import examine
from trtllm_truss.engines.gpus import accelerator_of
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.serving.preparation import resolve_engine
from trtllm_truss.settings.loading import Environment, parse_settings
from trtllm_truss.settings.model import read_mounts
from trtllm_workbench.cli.main import main
from trtllm_workbench.scaffold.docker_server import SLIM, own_server_section
from trtllm_workbench.scaffold.documents import SERVER_REQUIREMENTS
from trtllm_workbench.scaffold.placing import deliver, known_truss

Refused = Callable[..., str]
TRUSS = Path(sys.executable).with_name("truss")
SECRET = {"auth_method": "CUSTOM_SECRET", "auth_secret_name": "hf_access_token"}


def one_gpu() -> dict[str, bytes]:
    return {**in_memory(new_config()), "engine.manifest.json": b"{}", "notes [1].txt": b"x"}


def test_the_platform_delivers_exactly_what_a_start_fetches(
    tmp_path: Path, hub: HubServer, initialize: Initialize
) -> None:
    hub.add("org/engine", one_gpu())
    hub.add("org/words", {**TOKENIZER, "pytorch_model.bin": b"x"})
    written = initialize("org/engine", "--tokenizer", "org/words")
    engine, words = written.config["weights"]
    commits = [hub.repositories[name].revisions["main"] for name in ("org/engine", "org/words")]
    assert engine == {
        "source": f"hf://org/engine@{commits[0]}",
        "mount_location": "/models/engine",
        "allow_patterns": ["config.json", "engine.manifest.json", "rank0.engine"],
    }
    assert words["allow_patterns"] == [*TOKENIZER]
    assert written.metadata["engine_revision"] == commits[0]
    assert written.metadata["tokenizer_revision"] == commits[1]

    resolve_engine(parse_settings(written.config), Environment(None, {}), HostInfo())
    fetched = {request.path.rpartition("/")[2] for request in hub.asked_for("*/resolve/*", "GET")}
    assert fetched == {*engine["allow_patterns"], *words["allow_patterns"]}

    for source, entry in (("org/engine", engine), ("org/words", words)):
        entry["mount_location"] = str(tmp_path / source)
        Path(entry["mount_location"]).mkdir(parents=True)
        files = hub.repositories[source].commits[entry["source"].partition("@")[2]]
        for path in entry["allow_patterns"]:
            (tmp_path / source / path).write_bytes(files[path].data)
    hub.forget()
    mounted = resolve_engine(parse_settings(written.config), Environment(None, {}), HostInfo())
    assert mounted.engine.folder == tmp_path / "org/engine"
    assert mounted.tokenizer_folder == tmp_path / "org/words"
    assert hub.requests == []


def test_a_private_repository_with_its_tokenizer_is_one_source(
    hub: HubServer, initialize: Initialize, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/engine", one_gpu(), private=True)
    hub.add_token(TOKEN)
    monkeypatch.setenv("TRUSS_SECRET_hf_access_token", TOKEN)
    written = initialize("org/engine@main")
    (entry,) = written.config["weights"]
    assert entry["auth"] == SECRET
    assert {"rank0.engine", *TOKENIZER} < {*entry["allow_patterns"]}
    assert TOKEN not in written.text


def test_without_weights_the_start_downloads(hub: HubServer, initialize: Initialize) -> None:
    hub.add("org/engine", one_gpu())
    written = initialize("org/engine", "--no-weights")
    assert "weights" not in written.config
    assert "engine_revision" not in written.metadata


def test_an_old_configuration_fits_a_new_folder(
    hub: HubServer, initialize: Initialize, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As docs/upgrade.md has it."""
    hub.add("org/engine", one_gpu())
    old = initialize("org/engine")
    new = tmp_path / "new"
    assert main(["init", "org/engine", "--output", str(new)]) == 0
    (new / "config.yaml").write_text(old.text)
    assert main(["check", "--truss", str(new)]) == 0
    removed = old.text.replace("tags:", "no_longer_there: 1\n  tags:")
    (new / "config.yaml").write_text(removed)
    assert main(["check", "--truss", str(new)]) == 2
    assert "no_longer_there is not a setting" in capsys.readouterr().out


def test_folders_are_not_delivered(tmp_path: Path, tokenizer: str, initialize: Initialize) -> None:
    engine = write(tmp_path / "engine", new_config())
    assert "weights" not in initialize(str(engine), "--tokenizer", tokenizer).config


def test_s3(s3: S3Server, initialize: Initialize) -> None:
    s3.upload("platform", "llama", one_gpu())
    written = initialize("s3://platform/llama")
    (entry,) = written.config["weights"]
    assert entry["source"] == "s3://platform/llama"
    assert entry["auth"]["auth_secret_name"] == "aws_credentials"
    assert "the secret aws_credentials" in " ".join(written.readme.split())


def test_the_checkpoint_of_a_build(tmp_path: Path, hub: HubServer, initialize: Initialize) -> None:
    model = write_checkpoint(tmp_path / "model", llama(), shards=1)
    files = {file.name: file.read_bytes() for file in model.iterdir()}
    hub.add("org/model", {**files, **TOKENIZER})
    lmi = tmp_path / "serving.properties"
    lmi.write_text("engine=MPI\noption.model_id=org/model\noption.rolling_batch=trtllm\n")
    written = initialize(str(lmi))
    (entry,) = written.config["weights"]
    assert entry["mount_location"] == "/models/checkpoint"
    assert entry["source"].endswith(written.metadata["build"]["checkpoint_revision"])
    assert written.config["runtime"]["health_checks"]["startup_threshold_seconds"] == 3000


def test_names_with_wildcards_are_escaped() -> None:
    class Source:
        def listing(self) -> Any:
            return type("Listing", (), {"commit": "a" * 40, "sizes": {"a[1].json": 1}})

    need = Need("engine_repository", "org/name", None, Source(), ("a[1].json",))  # type: ignore
    (entry,) = deliver([need], wanted=True, with_token=False).weights
    assert entry["allow_patterns"] == ["a[[]1].json"]


@pytest.mark.parametrize(
    ("weights_gb", "options", "threshold_s"),
    [(16, (), 1920), (141, (), 2520), (700, (), 3000)],
)
def test_the_threshold_of_a_start_grows_with_the_weights(
    weights_gb: int,
    options: tuple[str, ...],
    threshold_s: int,
    tmp_path: Path,
    tokenizer: str,
    initialize: Initialize,
) -> None:
    folder = write_checkpoint(tmp_path / "model", llama(num_attention_heads=64), shards=1)
    with (folder / "model-00001-of-00001.safetensors").open("wb") as file:
        file.truncate(weights_gb * GB)
    written = initialize(str(folder), "--tokenizer", tokenizer, *options)
    checks = written.config["runtime"]["health_checks"]
    assert checks == {"startup_threshold_seconds": threshold_s}
    codes = {finding["code"] for finding in written.report["findings"]}
    assert ("startup_threshold" in codes) is (threshold_s == 3000)


def test_the_concurrency_target_follows_from_the_kv_cache(
    tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    engine = write(tmp_path / "engine", new_config())
    written = initialize(str(engine), "--tokenizer", tokenizer)
    (fact,) = [each for each in written.report["facts"] if each.startswith("concurrency target")]
    (tokens,) = [
        int(each.split(" → ")[1].removesuffix(" tokens").replace(",", ""))
        for each in written.report["facts"]
        if "KV cache per GPU" in each
    ]
    target = tokens // 2048
    assert fact.startswith(
        f"concurrency target: {target}: a batch of 2048, and KV cache for {target}"
    )
    assert f'{{"concurrency_target": {target}}}' in written.readme
    assert f"Set it to {target}" in " ".join(written.readme.split())
    assert written.config["runtime"]["predict_concurrency"] >= target


def test_the_server_of_truss_is_pinned(
    tmp_path: Path, tokenizer: str, initialize: Initialize
) -> None:
    engine = write(tmp_path / "engine", new_config())
    runtime = initialize(str(engine), "--tokenizer", tokenizer).config["runtime"]
    assert runtime["truss_server_version_override"] == known_truss()
    assert known_truss() is not None


@pytest.mark.parametrize(
    ("name", "accelerator"),
    [
        ("L4:4x16", "L4"),
        ("H100:8x80", "H100"),
        ("H100:2", "H100:2"),
        ("A100:4x48x576", "A100:4"),
        ("H100", "H100"),
        ("CPU:4x16", None),
    ],
)
def test_the_gpus_of_an_instance_type(name: str, accelerator: str | None) -> None:
    truss_config().from_dict({"resources": {"instance_type": name}})
    assert accelerator_of(name) == accelerator


def test_an_instance_type(tmp_path: Path, tokenizer: str, initialize: Initialize) -> None:
    engine = write(tmp_path / "engine", new_config(tp=2))
    options = ("--tokenizer", tokenizer, "--instance-type", "A100:2x24x288")
    assert initialize(str(engine), *options).config["resources"] == {
        "instance_type": "A100:2x24x288"
    }


def test_several_nodes(tmp_path: Path, tokenizer: str, initialize: Initialize) -> None:
    engine = write(tmp_path / "engine", new_config(tp=4))
    written = initialize(str(engine), "--tokenizer", tokenizer, "--node-count", "2")
    assert "node_count" not in written.config["resources"]
    assert written.config["resources"]["accelerator"].endswith(":2")
    assert written.metadata["nodes"] == 2


def test_no_egress(hub: HubServer, initialize: Initialize) -> None:
    hub.add("org/engine", one_gpu())
    runtime = initialize("org/engine", "--no-egress").config["runtime"]
    assert runtime["egress_restrictions"] == {"ip_allow_list": [], "fqdn_allow_list": []}


def add_model_with_adapter(hub: HubServer, folder: Path) -> tuple[tuple[str, ...], str]:
    """Add a checkpoint and an adapter to the Hub; return options, and the adapter's commit."""
    model = write_checkpoint(folder / "model", llama(), shards=1)
    hub.add("org/model", {file.name: file.read_bytes() for file in model.iterdir()} | TOKENIZER)
    commit = hub.add("org/sql", {**adapter_files(), "README.md": b""}).revisions["main"]
    return ("org/model", "--adapter", "sql=org/sql"), commit


def test_adapters_are_delivered(tmp_path: Path, hub: HubServer, initialize: Initialize) -> None:
    options, commit = add_model_with_adapter(hub, tmp_path)
    written = initialize(*options, "--no-egress")
    assert written.metadata["lora_adapters"] == {"sql": f"org/sql@{commit}"}
    weights = {entry["source"]: entry for entry in written.config["weights"]}
    delivered = weights[f"hf://org/sql@{commit}"]
    assert delivered["mount_location"] == "/models/adapter-1"
    assert delivered["allow_patterns"] == ["adapter_config.json", "adapter_model.safetensors"]


def test_adapters_that_nothing_delivers(
    tmp_path: Path, hub: HubServer, initialize: Initialize, refused: Refused
) -> None:
    options, _ = add_model_with_adapter(hub, tmp_path)
    config = initialize(*options, "--no-egress").config
    file = tmp_path / "config.yaml"
    for weights, codes in ((config["weights"], []), (config["weights"][:1], ["egress_blocked"])):
        file.write_text(yaml.safe_dump({**config, "weights": weights}))
        found = examine(tmp_path, file).findings
        assert [each.code for each in found if each.code.startswith("egress")] == codes
    assert "needs 'org/" in refused(*options, "--no-egress", "--no-weights")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--no-egress", "--no-weights"), "needs 'org/engine'"),
        (("--instance-type", "L4:4x16", "--accelerator", "L4"), "use one of them"),
        (("--instance-type", "H100:2"), "--instance-type is 'H100:2': "),
        (("--node-count", "2"), "the engine has 1 ranks"),
        (("--adapter", "sql"), "--adapter is 'sql'; it must be NAME=REPO."),
    ],
)
def test_options_that_contradict(
    hub: HubServer, refused: Refused, options: tuple[str, ...], part: str
) -> None:
    hub.add("org/engine", one_gpu())
    assert part in refused("org/engine", *options)


@pytest.mark.parametrize(
    ("changes", "code", "part"),
    [
        ({"model_cache": [{"repo_id": "a/b"}]}, "weights_and_model_cache", "truss migrate"),
        ({"resources": {"instance_type": "H100:2"}}, "accelerator_count", "s.instance_type"),
        (
            {"resources": {"accelerator": "H100", "instance_type": "L4:4x16"}},
            "instance_type",
            "L4:4x16 replaces it",
        ),
        ({"resources": {"accelerator": "H100", "node_count": 2}}, "node_count", "no launcher"),
        ({"resources": {"accelerator": "H100-2"}}, "accelerator_refused", '"H100-2", which Truss'),
        ({"resources": {"accelerator": 3}}, "accelerator_refused", "such as H100:2"),
        ({"secrets": {"a": "hidden"}}, "secret_value", "on this machine in TRUSS_SECRET_a."),
        ({"runtime": {}}, "predict_concurrency", "is 1, but the engine runs"),
        (
            {"runtime": {"health_checks": {"startup_threshold_seconds": 600}}},
            "startup_threshold",
            "is 600; set it to 1500",
        ),
        (
            {"weights": [], "runtime": {"egress_restrictions": {"ip_allow_list": []}}},
            "egress_blocked",
            "add it to weights",
        ),
        (
            {"weights": [{"source": "hf://org/engine", "mount_location": "/m",
                          "allow_patterns": ["*.json"]}]},
            "weights_patterns",
            "leave out rank0.engine",
        ),
        (
            {"weights": [{"source": "hf://org/engine@v1", "mount_location": "/m"}],
             "revision": "main"},
            "weights_revision",
            "the mount is not used",
        ),
    ],
)  # fmt: skip
def test_contradictions_are_named(
    tmp_path: Path, hub: HubServer, changes: dict[str, Any], code: str, part: str
) -> None:
    hub.add("org/engine", one_gpu())
    revision = {"engine_revision": changes["revision"]} if "revision" in changes else {}
    config = {
        "resources": {"accelerator": "H100"},
        "base_image": {
            "image": "nvcr.io/nvidia/tritonserver:25.10-trtllm-python-py3",
            "python_executable_path": "/usr/bin/python3",
        },
        "weights": [{"source": "hf://org/engine", "mount_location": "/models/engine"}],
        "runtime": {"predict_concurrency": 2048},
        **{key: value for key, value in changes.items() if key != "revision"},
        "model_metadata": {"engine_repository": "org/engine", **revision},
    }
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    messages = {finding.code: finding.message for finding in examine(tmp_path, file).findings}
    assert part in messages[code], messages
    assert "hidden" not in messages[code]
    assert {*messages} - {code} <= {"no_gpu", "no_triton", "predict_concurrency"}


def test_a_build_needs_its_checkpoint(tmp_path: Path, hub: HubServer) -> None:
    model = write_checkpoint(tmp_path / "model", llama(), shards=2)
    hub.add("org/model", {file.name: file.read_bytes() for file in model.iterdir()} | TOKENIZER)
    weights: Json = {
        "source": "hf://org/model",
        "mount_location": "/m",
        "allow_patterns": ["*.json"],
    }
    config: Json = {
        "resources": {"accelerator": "H100"},
        "runtime": {"egress_restrictions": {"ip_allow_list": []}},
        "model_metadata": {"build": {"checkpoint_repository": "org/model"}},
    }
    file = tmp_path / "config.yaml"

    def codes(**changes: Any) -> set[str]:
        file.write_text(yaml.safe_dump(config | changes))
        return {finding.code for finding in examine(tmp_path, file).findings}

    assert "egress_blocked" in codes()
    assert "weights_patterns" in codes(weights=[weights])
    del weights["allow_patterns"]
    assert "egress_blocked" not in codes(weights=[weights])
    config["model_metadata"]["build"]["publish_to"] = "org/engine"
    assert "egress_blocked" in codes(weights=[weights])


@pytest.mark.parametrize(
    "config",
    [
        old_config(),
        config_0_9(),
        config_0_12(),
        config_0_18(),
        new_config("1.2.1", tp=2),
        None,
    ],
    ids=["0.7", "0.9", "0.12", "0.18", "1.2", "checkpoint"],
)
@pytest.mark.server
def test_truss_reads_what_init_writes(
    config: Json | None, tmp_path: Path, hub: HubServer, initialize: Initialize
) -> None:
    files = TOKENIZER if config is None else in_memory(config)
    if config is None:
        model = write_checkpoint(tmp_path / "model", llama(), shards=2)
        files = {file.name: file.read_bytes() for file in model.iterdir()} | TOKENIZER
    hub.add("org/engine", files)
    written = initialize("org/engine")
    context = tmp_path / "context"
    result = run_warm(
        *(
            str(TRUSS),
            "image",
            "build-context",
            "--non-interactive",
            str(context),
            str(written.folder),
        ),
        env={**os.environ, "TRUSS_NO_UPDATE_CHECK": "1", "BT_USE_NON_ROOT_USER": "1"},
        cwd=tmp_path,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    carried = yaml.safe_load((context / "config.yaml").read_text())
    assert read_mounts(carried) == read_mounts(written.config) != ()
    assert carried["model_metadata"] == written.metadata
    runtime, carried_runtime = written.config["runtime"], carried["runtime"]
    for key in ("predict_concurrency", "truss_server_version_override"):
        assert carried_runtime[key] == runtime[key]
    key = "startup_threshold_seconds"
    assert carried_runtime["health_checks"][key] == runtime["health_checks"][key]


@pytest.mark.server
@pytest.mark.parametrize("slim", ["true", ""], ids=["slim", "behind nginx"])
def test_truss_reads_the_shape_of_our_own_server(
    slim: str, tmp_path: Path, hub: HubServer, initialize: Initialize
) -> None:
    hub.add("org/engine", {**in_memory(new_config("1.2.1")), **TOKENIZER})
    written = initialize("org/engine", "--server", "own")
    context = tmp_path / "context"
    result = run_warm(
        *(str(TRUSS), "image", "build-context", "--non-interactive", str(context)),
        str(written.folder),
        env={
            **os.environ,
            **{"TRUSS_NO_UPDATE_CHECK": "1", "BT_USE_NON_ROOT_USER": "1", SLIM: slim},
        },
        cwd=tmp_path,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    carried = yaml.safe_load((context / "config.yaml").read_text())["docker_server"]
    section = own_server_section("/usr/bin/python3")
    assert carried.items() >= section.items()
    dockerfile = (context / "Dockerfile").read_text()
    command = section["start_command"]
    assert f'ENV SERVER_START_CMD="{command}"' in dockerfile or not slim
    assert dockerfile.endswith(f'CMD ["{command}"]') == bool(slim)
    assert "COPY --chown=root:root ./packages /packages" in dockerfile
    asked = (context / "user_requirements.txt").read_text()
    assert all(line in asked for line in SERVER_REQUIREMENTS)
    if not slim:  # Baseten's proxy and supervisor
        proxy = (context / "proxy.conf").read_text()
        assert f"proxy_pass http://127.0.0.1:{section['server_port']};" in proxy
        assert f"command = {command}" in (context / "supervisord.conf").read_text()
