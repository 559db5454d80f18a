"""Check Baseten's keys of config.yaml against the engine's needs.

Sources, November 2026: the keys are those of truss/base/truss_config.py, 0.18.35; the concurrency
target of docs.baseten.co/deployment/autoscaling; the limits of a start of
docs.baseten.co/development/model/health-checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from trtllm_builder.jobs import CheckpointSource
from trtllm_truss.artifacts.listing import Source, select_tokenizer
from trtllm_truss.artifacts.open_repository import (
    is_local,
    is_remote,
    other_revision,
    with_revision,
)
from trtllm_truss.engines.adapters import AdapterRepository
from trtllm_truss.engines.capacity import Capacity
from trtllm_truss.engines.diagnostics import Diagnostic, error, shortlist, warning
from trtllm_truss.engines.engine import SLOW_BYTES_PER_S, Engine
from trtllm_truss.engines.gpus import (
    accelerator_of,
    accelerator_text,
    meant_accelerator,
    parse_accelerator,
)
from trtllm_truss.engines.images import PINNED_IMAGE
from trtllm_truss.machine.runtime import find_runtime
from trtllm_truss.serving.preparation import supervised_limits
from trtllm_truss.serving.repositories import EngineRepository, TokenizerRepository
from trtllm_truss.settings.model import Mount, Settings
from trtllm_truss.validation import holds_credential, names_credential, shown, shown_name

_STARTUP_S = 1800
LONGEST_STARTUP_S = 3000
_MARGIN_S = 300
_USUAL_TOKENS = 2048
_PREDICT_CONCURRENCY = 1024


ADAPTER = "lora_adapters."
"""The prefix of `Need.setting` for an adapter; its name follows."""


@dataclass(frozen=True, slots=True)
class Need:
    """The files of one repository that a start reads.

    Attributes:
        setting: its key in config.yaml.
        repository: its name in config.yaml.
        revision: as given in config.yaml.
        paths: the files, by path in the repository.
    """

    setting: str
    repository: str
    revision: str | None
    source: Source
    paths: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        sizes = self.source.listing().sizes
        return sum(sizes[path] for path in self.paths)


def needs_of(
    settings: Settings,
    engine: EngineRepository,
    described: Engine,
    tokenizer: TokenizerRepository | None,
    adapters: Sequence[AdapterRepository] = (),
) -> list[Need]:
    """Return the files that serving reads from the repositories of engine, tokenizer and adapters.

    Raises:
        ArtifactError: the tokenizer is missing or not trusted.
    """
    with_code = settings.trust_remote_code
    paths = engine.engine_paths(described, with_code=with_code)
    if tokenizer is None:
        paths = [*paths, *engine.tokenizer_paths(trust_remote_code=with_code)]
    names = settings.engine_repository or "", settings.tokenizer_repository or ""
    paths = [*dict.fromkeys(paths)]  # a GGUF file is its own tokenizer
    found = [
        Need("engine_repository", names[0], settings.engine_revision, engine.source, tuple(paths))
    ]
    if tokenizer is not None:
        revision, source = settings.tokenizer_revision, tokenizer.source
        found.append(
            Need("tokenizer_repository", names[1], revision, source, tuple(tokenizer.paths()))
        )
    return found + [
        Need(ADAPTER + each.adapter.name, each.repository, each.revision, each.source, each.files)
        for each in adapters
    ]


def needs_of_build(
    settings: Settings, checkpoint: CheckpointSource, tokenizer: TokenizerRepository | None
) -> list[Need]:
    """Return the files of checkpoint and tokenizer that a build in the server reads.

    Raises:
        ArtifactError: the tokenizer is missing or not trusted.
    """
    build, with_code = settings.build, settings.trust_remote_code
    assert build is not None, "the settings name a build"
    paths = {*checkpoint.paths(with_code=with_code)}
    if tokenizer is None and settings.tokenizer_repository is None:
        sizes = checkpoint.source.listing().sizes
        paths |= {*select_tokenizer(sizes, trust_remote_code=with_code)}
    found = [
        Need(
            "build.checkpoint_repository",
            build.checkpoint_repository,
            build.checkpoint_revision,
            checkpoint.source,
            tuple(sorted(paths)),
        )
    ]
    if tokenizer is not None:
        name, revision = settings.tokenizer_repository or "", settings.tokenizer_revision
        own = tuple(tokenizer.paths())
        found.append(Need("tokenizer_repository", name, revision, tokenizer.source, own))
    return found


@dataclass(frozen=True, slots=True)
class ConcurrencyTarget:
    """Number of requests that a replica should receive at once.

    Attributes:
        reason: how it is derived from the engine, as a clause.
    """

    requests: int
    reason: str

    @classmethod
    def of(cls, settings: Settings, engine: Engine, capacity: Capacity | None) -> ConcurrencyTarget:
        """Return the number of requests of usual length that the engine runs at once.

        An engine that overcommits its KV cache would pause further requests.
        """
        schedulers = engine.scheduler_count(settings)
        slots = engine.batch_size(settings) * schedulers
        tokens = engine.kv_cache_tokens(settings, capacity)
        if tokens is None:
            return cls(slots, f"the engine's batch of {slots}")
        each = min(_USUAL_TOKENS, engine.max_sequence_tokens)
        fitting = max(1, tokens * schedulers // each)
        return cls(
            min(slots, fitting),
            f"a batch of {slots}, and KV cache for {fitting} requests of {each:,} tokens (prompt "
            "and max_tokens)",
        )

    @property
    def sentence(self) -> str:
        return (
            f"concurrency target: {self.requests}: {self.reason}; Baseten's default is 1, set it "
            "(docs/baseten.md)"
        )


def predict_concurrency(target: ConcurrencyTarget | None) -> int:
    """Return a `runtime.predict_concurrency` that is never the bottleneck."""
    return max(_PREDICT_CONCURRENCY, target.requests if target else 0)


def startup_threshold_s(settings: Settings, engine: Engine | None, downloaded_bytes: int) -> int:
    """Return `startup_threshold_seconds`: longer than our own limits, so that these report first.

    Args:
        settings: `serving.start_timeout_s`.
        engine: the engine; None if it is built when the server starts.
        downloaded_bytes: size of the start's own downloads.
    """
    if engine is None and settings.build is not None:
        return LONGEST_STARTUP_S
    longest_s = _longest_start_s(settings, engine, downloaded_bytes) + _MARGIN_S
    return min(LONGEST_STARTUP_S, math.ceil(longest_s / 60) * 60)


def check_keys(
    config: Mapping[str, Any],
    settings: Settings,
    engine: Engine | None,
    needs: Iterable[Need],
    target: ConcurrencyTarget | None,
) -> Iterator[Diagnostic]:
    """Yield contradictions among Baseten's keys, and between them and the engine.

    Args:
        config: the parsed config.yaml.
        settings: `model_metadata`.
        needs: the files that its start reads.
        target: its concurrency target; None if unknown.
    """
    runtime, resources = _section(config, "runtime"), _section(config, "resources")
    if config.get("weights") and config.get("model_cache"):
        yield error(
            "weights_and_model_cache",
            "config.yaml has weights and model_cache, which Truss refuses together; remove "
            "model_cache (`truss migrate` converts it).",
        )
    yield from _check_resources(resources)
    yield from _check_placing(config, settings, engine)
    for place in _tokens(config):
        yield warning(
            "token_in_file",
            f"config.yaml: {place} looks like a token or password, which `truss push` uploads; "
            "keep it in a secret of the workspace, and on this machine in TRUSS_SECRET_<name>.",
        )
    for name, value in _section(config, "secrets").items():
        if value:
            yield warning(
                "secret_value",
                f"config.yaml: secrets.{name} has a value, which `truss push` uploads; set it to "
                f"null, and the value in the workspace, on this machine in TRUSS_SECRET_{name}.",
            )
    concurrency = runtime.get("predict_concurrency", 1)
    if target is not None and isinstance(concurrency, int) and concurrency < target.requests:
        yield warning(
            "predict_concurrency",
            f"config.yaml: runtime.predict_concurrency is {concurrency}, but the engine runs "
            f"{target.requests} requests at once; set it to "
            f"{predict_concurrency(target)}.",
        )
    downloaded_bytes = 0
    blocked = _blocks_everything(runtime.get("egress_restrictions"))
    published = settings.build.publish_to if settings.build else None
    if blocked and published and settings.engine_repository is None:
        yield error(
            "egress_blocked",
            "config.yaml: runtime.egress_restrictions blocks every host, but the start publishes "
            f"what it builds to build.publish_to {published!r}; allow its host.",
        )
    for need in needs:
        found = [*_check_delivery(need, settings, blocked)]
        yield from found
        if found or _mount_of(need, settings) is None:
            downloaded_bytes += need.total_bytes if is_remote(need.repository) else 0
    yield from _check_startup(runtime, settings, engine, downloaded_bytes)


def _check_resources(resources: Mapping[str, Any]) -> Iterator[Diagnostic]:
    instance_type, given = resources.get("instance_type"), resources.get("accelerator")
    accelerator = accelerator_text(given)
    if isinstance(given, Mapping) and not given.get("accelerator"):
        name, count = next(iter(given.items()), ("H100", 2))
        yield warning(
            "no_accelerator",
            f"config.yaml: resources.accelerator.{shown_name(str(name))} is not a key of Truss, "
            f"which finds no GPU there; write accelerator: {shown_name(str(name))}:{shown(count)}.",
        )
    elif not isinstance(given, (str, dict, NoneType)) or (
        isinstance(given, str) and parse_accelerator(given) is None
    ):
        meant = meant_accelerator(given) if isinstance(given, str) else None
        yield error(
            "accelerator_refused",
            f"config.yaml: resources.accelerator is {shown(given)}, which Truss refuses; write a "
            "GPU's name, with a colon and a number for several, such as "
            f"{f'{meant} or {meant}' if meant else 'H100'}:2.",
        )
    if isinstance(instance_type, str) and accelerator is not None:
        chosen = parse_accelerator(accelerator_of(instance_type) or "")
        if chosen != parse_accelerator(accelerator):
            yield warning(
                "instance_type",
                f"config.yaml: resources.accelerator is {accelerator}, but instance_type "
                f"{instance_type} replaces it; remove one of them.",
            )
    nodes = resources.get("node_count") or 1
    if nodes != 1:
        yield warning(
            "node_count",
            f"config.yaml: resources.node_count is {shown(nodes)}, but Baseten starts no launcher, "
            "which ranks on several hosts need (docs/several-hosts.md); remove it.",
        )


def _check_placing(
    config: Mapping[str, Any], settings: Settings, engine: Engine | None
) -> Iterator[Diagnostic]:
    """Yield requirements that the platform would not meet: a GPU, its image, its files."""
    if settings.engine_repository is None:
        gpus = settings.tensor_parallelism * settings.pipeline_parallelism
    else:
        gpus = engine.gpu_count if engine is not None and engine.uses_gpus else 0
    resources = _section(config, "resources")
    if gpus and not resources.get("accelerator") and not resources.get("instance_type"):
        count = f":{gpus}" if gpus > 1 else ""
        yield warning(
            "no_accelerator",
            "config.yaml: resources.accelerator is missing: Baseten would run this GPU engine on a "
            f"CPU; set it, such as H100{count}.",
        )
    if gpus and not _section(config, "base_image").get("image") and not find_runtime().installed:
        yield warning(
            "no_image",
            "config.yaml: base_image.image is missing: Truss's own image has neither Triton nor "
            f"TensorRT-LLM; set it, such as {PINNED_IMAGE.name}.",
        )
    for name, repository, _ in _repositories(settings):
        if is_local(repository) and not any(
            Path(repository).is_relative_to(mount.place) for mount in settings.mounts
        ):
            yield warning(
                "local_folder",
                f"{name} {repository!r} is a folder of this machine, which `truss push` leaves "
                "behind; upload it (`hf upload`) and name its repository, or mount it into the "
                "container (docs/docker.md).",
            )


def check_revisions(settings: Settings) -> Iterator[Diagnostic]:
    """Yield mounts of another revision than the settings specify; such mounts are not used."""
    for name, repository, revision in _repositories(settings):
        for mount in settings.mounts:
            if mount.folder_of(repository) is not None and not mount.has_revision(revision):
                yield warning("weights_revision", other_revision(name, mount, revision))


def _repositories(settings: Settings) -> Iterator[tuple[str, str, str | None]]:
    """Yield each repository in the settings: its key, name and revision."""
    build = settings.build
    if settings.engine_repository is not None:
        yield "engine_repository", settings.engine_repository, settings.engine_revision
    elif build is not None:
        yield (
            "build.checkpoint_repository",
            build.checkpoint_repository,
            build.checkpoint_revision,
        )
    if settings.tokenizer_repository is not None:
        yield "tokenizer_repository", settings.tokenizer_repository, settings.tokenizer_revision
    for name, repository in settings.lora_adapters.items():
        yield (ADAPTER + name, *with_revision(repository))


def _tokens(value: Any, place: str = "") -> Iterator[str]:
    """Yield the places of texts that look like credentials, except in `secrets`."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            inner = f"{place}.{name}".lstrip(".")
            if inner != "secrets":
                yield from _tokens(each, inner)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _tokens(each, f"{place}[{number}]")
    elif (isinstance(value, str) and holds_credential(value)) or (
        isinstance(value, str)
        and place.startswith("environment_variables.")
        and value
        and names_credential(place)
    ):
        yield place


def _check_delivery(need: Need, settings: Settings, blocked: bool) -> Iterator[Diagnostic]:
    mount = _mount_of(need, settings)
    if mount is None:
        if blocked and is_remote(need.repository):
            yield error(
                "egress_blocked",
                f"config.yaml: runtime.egress_restrictions blocks every host, but {need.setting} "
                f"{need.repository!r} is downloaded at the start; add it to weights.",
            )
        return
    place = mount.folder_of(need.repository) or mount.place
    below = "" if place == mount.place else f"{place.relative_to(mount.place)}/"
    if left_out := [path for path in need.paths if not mount.delivers(below + path)]:
        yield error(
            "weights_patterns",
            f"config.yaml: the patterns of {mount.source} in weights leave out "
            f"{shortlist(left_out)}, which the start of this server reads; add the names to "
            "allow_patterns.",
        )


def _check_startup(
    runtime: Mapping[str, Any],
    settings: Settings,
    engine: Engine | None,
    downloaded_bytes: int,
) -> Iterator[Diagnostic]:
    threshold_s = _section(runtime, "health_checks").get("startup_threshold_seconds") or _STARTUP_S
    longest_s = _longest_start_s(settings, engine, downloaded_bytes)
    if not isinstance(threshold_s, int) or longest_s <= threshold_s:
        return
    wanted_s = math.ceil(longest_s / 60) * 60
    remedy = f"set it to {wanted_s}"
    if wanted_s > LONGEST_STARTUP_S:
        remedy = f"{LONGEST_STARTUP_S} is its limit: lower serving.start_timeout_s" + (
            ", or let weights deliver the files" if downloaded_bytes else ""
        )
    fetched = f" and the download of {downloaded_bytes / 1e9:.0f} GB" if downloaded_bytes else ""
    yield warning(
        "startup_threshold",
        f"config.yaml: a start may take {longest_s:.0f} s with serving.start_timeout_s{fetched}, "
        f"but runtime.health_checks.startup_threshold_seconds is {threshold_s}; {remedy}.",
    )


def _longest_start_s(settings: Settings, engine: Engine | None, downloaded_bytes: int) -> float:
    limits = settings.serving if engine is None else supervised_limits(settings.serving, engine)
    return limits.start_timeout_s + downloaded_bytes / SLOW_BYTES_PER_S


def _mount_of(need: Need, settings: Settings) -> Mount | None:
    return next(
        (
            mount
            for mount in settings.mounts
            if mount.folder_of(need.repository) is not None and mount.has_revision(need.revision)
        ),
        None,
    )


def _blocks_everything(restrictions: object) -> bool:
    return isinstance(restrictions, Mapping) and not (
        restrictions.get("ip_allow_list") or restrictions.get("fqdn_allow_list")
    )


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    return section if isinstance(section, Mapping) else {}
