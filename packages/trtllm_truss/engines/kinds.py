"""The kinds of engines: how they are recognized, inspected and checked for compatibility.

A pure function compares settings, engine, image, GPUs and runtime before a start; unknown facts are
not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path, PurePosixPath

from trtllm_truss.engines.adapters import Adapter, AdapterRepository
from trtllm_truss.engines.diagnostics import Diagnostic, error, shortlist
from trtllm_truss.engines.engine import Engine, Placement
from trtllm_truss.engines.engine_files import CONFIG_FILE, WEIGHTS_SUFFIX
from trtllm_truss.engines.gpus import ComputeCapability
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.manifest import MANIFEST_FILE, parse_manifest, read_manifest
from trtllm_truss.errors import ArtifactError, SettingsError
from trtllm_truss.json_files import parse_json
from trtllm_truss.request_fields import OPTIONS, SAMPLING
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings
from trtllm_truss.validation import shown

_FOLDERS = (
    "compiled",
    "cpu",
    "checkpoint",
)
"""Engine kinds, in the order in which they are tried."""

_BACKENDS = Path(__file__).resolve().parents[2] / "trtllm_backends"
"""The package next to this one, with Triton's backends and their shared code."""

KINDS: tuple[type[Engine], ...] = tuple(
    import_module(f"trtllm_truss.engines.{folder}.engine").KIND for folder in _FOLDERS
)


_PICKLED = (
    f"a model's weights as pickles; convert them to {WEIGHTS_SUFFIX}, or build an engine from them"
)
_ADAPTER = "adapter_config.json"
_FOREIGN = {
    WEIGHTS_SUFFIX: f"a model's weights without their {CONFIG_FILE}; add it",
    **dict.fromkeys((".bin", ".pt", ".pth"), _PICKLED),
    ".onnx": "an ONNX model; TensorRT-LLM does not load it",
    ".plan": "a plain TensorRT plan; TensorRT-LLM does not load it",
    ".trt": "a plain TensorRT plan; TensorRT-LLM does not load it",
}


def own_backends() -> dict[str, Path]:
    """Return the folders of this project's Triton backends, by name."""
    paths = {kind.backend: _BACKENDS / kind.backend for kind in KINDS}
    return {name: path for name, path in paths.items() if path.is_dir()}


def find_engine(sizes: Mapping[str, int]) -> tuple[type[Engine], Placement]:
    """Locate the engine in a repository and determine its kind.

    Args:
        sizes: size in bytes of every file, by path below the repository, ``/`` between folders.

    Raises:
        ArtifactError: the repository has no engine, several engines, or an incomplete one.
    """
    for kind in KINDS:
        if kind.suffixes and not any(name.endswith(kind.suffixes) for name in sizes):
            continue
        if (placement := kind.locate(sizes)) is not None:
            _refuse_empty(placement.sizes(sizes), kind.suffixes)
            return kind, placement
    *others, last = (kind.wanted for kind in KINDS)
    wanted = f"{', '.join(others)} or {last}" if others else last
    deep = "".join(f"; or {kind.wanted_deep}" for kind in KINDS if kind.wanted_deep)
    raise ArtifactError(
        f"the engine repository holds {_contents(sizes)}. An engine repository holds {wanted}, "
        f"flat in its top folder{deep}."
    )


def _refuse_empty(sizes: Mapping[str, int], suffixes: tuple[str, ...]) -> None:
    empty = sorted(name for name in sizes if name.endswith(suffixes) and not sizes[name])
    if empty:
        raise ArtifactError(
            f"{shortlist(empty)} in the engine repository is empty; upload it again."
        )


def check_settings(settings: Settings, version: str | None) -> None:
    """Check settings that only some kinds of engines have.

    Args:
        version: TensorRT-LLM version that must support the keys of `runtime`; None if unknown.

    Raises:
        SettingsError: a value is wrong, or not available in the version; its ``param`` names it.
    """
    for kind in KINDS:
        if _own_setting(kind, settings):
            kind.check_settings(settings, version)
    if version is not None:
        settings.runtime.check_version(version)


def with_settings(
    engine: Engine,
    settings: Settings,
    version: str | None = None,
    adapters: Sequence[Adapter] = (),
    gpu: ComputeCapability | None = None,
) -> Engine:
    """Apply the settings to an engine (`Engine.with_settings`).

    Raises:
        SettingsError: a setting does not exist for this kind of engine, or contradicts another.
    """
    for kind in KINDS:
        if not isinstance(engine, kind) and (name := _own_setting(kind, settings)):
            raise SettingsError(
                f"config.yaml: model_metadata.{name} is set, but the engine in "
                f"{settings.engine_repository} is {engine.named}; remove it, or name "
                f"{kind.own_repository}.",
                param=name.rpartition(".")[2],
            )
    return engine.with_settings(settings, version, adapters, gpu)


def open_adapters(settings: Settings, environment: Environment) -> tuple[AdapterRepository, ...]:
    """Open the repositories of `lora_adapters` (`Engine.open_adapters`)."""
    kinds = [kind for kind in KINDS if _own_setting(kind, settings)]
    return tuple(each for kind in kinds for each in kind.open_adapters(settings, environment))


def _own_setting(kind: type[Engine], settings: Settings) -> str | None:
    """Return the first of a kind's `own_settings` that is set."""
    return next((name for name in kind.own_settings if attrgetter(name)(settings)), None)


def _contents(sizes: Mapping[str, int]) -> str:
    suffixes = tuple(suffix for kind in KINDS for suffix in kind.suffixes)
    names = sorted(name for name in sizes if "/" not in name)
    nested = sorted(
        {
            str(PurePosixPath(name).parent)
            for name in sizes
            if "/" in name and name.endswith(suffixes)
        }
    )
    if {"encoder", "decoder"} <= set(nested):
        return "an encoder and a decoder, which is not supported"
    if nested:
        return (
            f"no engine in its top folder but in {shortlist(nested)}; name that folder itself, or "
            "a repository that holds its files in the top folder"
        )
    if not sizes:
        return "no file"
    if _ADAPTER in sizes:
        return (
            f"{_ADAPTER}: it is a LoRA adapter; name its base model, a Hugging Face checkpoint, "
            "here, and the adapter under model_metadata.lora_adapters"
        )
    for suffix, meaning in _FOREIGN.items():
        foreign = [name for name in names if name.endswith(suffix)]
        if foreign:
            return f"no engine, but {shortlist(foreign)}: {meaning}"
    if CONFIG_FILE in sizes:
        return f"{CONFIG_FILE} but no engine files"
    return "no engine"


def inspect_engine(repository: Path) -> Engine:
    """Inspect an engine on this machine.

    Args:
        repository: its folder, flat or in LMI's layout.

    Raises:
        ArtifactError: the folder has no engine, or its description cannot be read.
    """
    try:
        sizes = _sizes(repository)
        kind, placement = find_engine(sizes)
        folder, here = repository / placement.folder, placement.sizes(sizes)
        described = kind.describe_folder(folder, here)
        manifest = read_manifest(folder) if MANIFEST_FILE in here else None
    except ArtifactError as error:
        raise ArtifactError(f"engine_repository {str(repository)!r}: {error.message}") from error
    except OSError as error:
        raise ArtifactError(
            f"engine_repository {str(repository)!r} cannot be read ({error.strerror}); check the "
            "path and its permissions."
        ) from error
    return replace(
        described,
        manifest=manifest,
        placement=placement,
        folder=folder,
        tokenizer_folder=repository / placement.tokenizer_folder,
    )


def inspect_files(sizes: Mapping[str, int], read: Callable[[str], bytes]) -> Engine:
    """Inspect an engine by its listing and a few small files, before its weights are fetched.

    Args:
        sizes: size in bytes of every file, by path below the repository.
        read: returns the contents of a file.

    Returns:
        The description, which may not have the limits (`Engine.is_described`) and the manifest yet.

    Raises:
        ArtifactError: the files do not describe an engine.
    """
    kind, placement = find_engine(sizes)
    here = placement.sizes(sizes)
    paths = dict(zip(here, placement.paths(here), strict=True))
    contents = {
        name: parse_json(name, read(paths[name]))
        for name in kind.described_by(here)
        if name in here
    }
    described = kind.describe(here, contents)
    if described.is_described and MANIFEST_FILE in here:
        recorded = parse_json(MANIFEST_FILE, read(paths[MANIFEST_FILE]))
        described = replace(described, manifest=parse_manifest(recorded))
    return replace(described, placement=placement)


def _sizes(folder: Path) -> dict[str, int]:
    if not folder.is_dir():
        raise ArtifactError("the folder does not exist; check engine_repository.")
    files = (file for depth in range(4) for file in folder.glob("*/" * depth + "*"))
    return {
        file.relative_to(folder).as_posix(): file.stat().st_size for file in files if file.is_file()
    }


def check_compatibility(settings: Settings, engine: Engine, host: HostInfo) -> list[Diagnostic]:
    """Return all mismatches, the most basic first.

    Raises:
        SettingsError: `runtime` asks for copies or GPUs that the engine's ranks cannot have.
    """
    engine.instance_count(settings)
    return [
        *_parallelism(settings, engine),
        *engine.check(settings, host),
        *_request_defaults(settings, engine, host),
    ]


def _request_defaults(settings: Settings, engine: Engine, host: HostInfo) -> Iterator[Diagnostic]:
    """Find defaults that the engine refuses, which would fail requests without the field."""
    refused, beams = engine.refuses(host.known_version), engine.beam_limit(settings)
    for row in (*SAMPLING, *OPTIONS):
        for name in {row.name, *row.tensors} & settings.generation.keys():
            value = settings.generation[name]
            if row.name in refused and row.has_effect(value):
                reason = f"{engine.answering} refuses it"
            elif row.name == "beam_width" and isinstance(value, int) and value > beams:
                reason = f"this engine has at most {beams}"
            else:
                continue
            yield error(
                "default_refused",
                f"config.yaml: model_metadata.generation.{name} is {shown(value)}, but {reason}: "
                "requests that leave it out would fail. Remove it.",
            )


def _parallelism(settings: Settings, engine: Engine) -> Iterator[Diagnostic]:
    for name in ("tensor_parallelism", "pipeline_parallelism"):
        wanted, built = getattr(settings, name), getattr(engine, name)
        if wanted != built:
            yield error(
                f"{name}_mismatch",
                f"config.yaml: model_metadata.{name} is {wanted}, but the engine in "
                f"{settings.engine_repository} was built for {built}; set it to {built}, or build "
                f"the engine for {wanted}.",
            )
