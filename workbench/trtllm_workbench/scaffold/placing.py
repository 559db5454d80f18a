"""Choose the smallest GPUs for an engine, and the `weights` that the platform mounts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import escape
from importlib import metadata
from typing import Any, NamedTuple

from trtllm_truss.artifacts.listing import is_commit
from trtllm_truss.artifacts.open_repository import is_on_hub, is_remote
from trtllm_truss.cli.baseten import ADAPTER, ConcurrencyTarget, Need
from trtllm_truss.engines.capacity import Capacity
from trtllm_truss.engines.diagnostics import Diagnostic, Severity, shortlist
from trtllm_truss.engines.gpus import (
    ACCELERATORS,
    Accelerator,
    ComputeCapability,
    parse_accelerator,
)
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import BaseImage
from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import read_facts
from trtllm_truss.settings.loading import ACCESS_TOKEN_SECRET
from trtllm_truss.settings.model import Settings

DEGREES = (1, 2, 4, 8)
"""Tensor parallelism to try if nothing fixes it."""

_CHOSEN = read_facts("images", "gpus")
"""Releases by the compute capability chosen with them."""

_SLICES = frozenset({"H100_40GB"})  # MIG: NCCL does not join slices
_WORKING_BYTES = 2 * 10**9  # CUDA graphs, NCCL, an engine's activations; see engines.capacity


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of comparing an engine with GPUs.

    Attributes:
        findings: problems found.
        capacity: capacity of the KV cache; None if unknown.
        target: requests to send at once; None if unknown.
    """

    findings: Sequence[Diagnostic]
    capacity: Capacity | None = None
    target: ConcurrencyTarget | None = None

    @property
    def errors(self) -> list[str]:
        return [found.message for found in self.findings if found.severity is Severity.ERROR]

    @property
    def is_roomy(self) -> bool:
        """True if a whole sequence fits besides the weights and the runtime's working memory."""
        capacity = self.capacity
        if capacity is None:
            return True
        sequence_bytes = capacity.sequence_tokens * capacity.bytes_per_token
        return capacity.free_bytes - _WORKING_BYTES >= sequence_bytes


@dataclass(frozen=True, slots=True)
class Place:
    """GPUs for an engine.

    Attributes:
        accelerator: `resources.accelerator`.
        degree: tensor parallelism.
        verdict: result of the comparison.
        reason: why these were chosen, as a sentence.
    """

    accelerator: str
    degree: int
    verdict: Fit
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Requirements on the GPUs.

    Attributes:
        degrees: values of tensor parallelism to try.
        others: pipeline × context parallelism; GPUs = degree × others.
        nodes: hosts that share them evenly.
        option: option that gave the accelerator.
        runtime: base of the container.
        version: version of TensorRT-LLM; None if unknown.
        capability: capability of the GPU that built the engine; None if unknown or not bound to
            one.
        settings: validates the settings for a degree.
        examine: compares them with an image and an accelerator.
    """

    degrees: Sequence[int]
    others: int
    runtime: BaseImage
    version: str | None
    capability: ComputeCapability | None = None
    nodes: int = 1
    option: str = "--accelerator"
    settings: Callable[[int], Settings]
    examine: Callable[[Settings, HostInfo], Fit] = field(repr=False)

    def gpus(self, degree: int) -> int:
        """Return the GPUs of each host."""
        return degree * self.others // self.nodes

    def try_out(self, accelerator: str, degree: int) -> Fit:
        host = HostInfo(accelerator, self.runtime.image, python=self.runtime.executable)
        return self.examine(self.settings(degree), host)


def choose_gpus(requirements: Requirements, given: str | None) -> Place:
    """Choose GPUs.

    Args:
        requirements: requirements of the engine.
        given: `--accelerator`; without a number, as many as the engine needs.

    Raises:
        SettingsError: `given` is unknown, or the engine does not fit.
    """
    if given is not None:
        return _given_place(requirements, given)
    fitting: list[tuple[Place, Accelerator]] = []
    refusals: dict[str, list[str]] = {}
    for accelerator, degree in _by_memory(requirements):
        spec = _spec(accelerator.name, requirements.gpus(degree))
        verdict = requirements.try_out(spec, degree)
        if verdict.errors:
            refusals[spec] = verdict.errors
        else:
            fitting.append((Place(spec, degree, verdict, ""), accelerator))
    if not fitting:
        raise SettingsError(_refusal(refusals))
    roomy = [choice for choice in fitting if choice[0].verdict.is_roomy]
    chosen, accelerator = (roomy or fitting)[0]
    kind = (
        f"of compute capability {_dotted(requirements.capability)}, "
        if requirements.capability
        else ""
    )
    summary = chosen.verdict.capacity.summary if chosen.verdict.capacity else ""
    others = [
        other.accelerator
        for other, _ in fitting
        if other is not chosen and other.degree == chosen.degree
    ]
    reason = (
        f"the least GPU memory that holds the model, {kind}"
        f"{accelerator.memory_bytes // 10**9} GB each"
        + (f": {summary}" if summary else "")
        + (f". These fit too: {shortlist(others)}." if others else ".")
    )
    return Place(chosen.accelerator, chosen.degree, chosen.verdict, reason)


def _refusal(refusals: Mapping[str, Sequence[str]]) -> str:
    """Return the problem that all accelerators share, or that of the largest."""
    if not refusals:
        return (
            "no accelerator of this release is of the generation that built the engine; name one "
            "with --accelerator, or build the engine again."
        )
    *_, (largest, errors) = refusals.items()
    common = [message for message in errors if all(message in some for some in refusals.values())]
    if common and len(refusals) > 1:
        return " ".join(common)
    return f"no accelerator fits; the largest, {largest}: {errors[0]}"


def _given_place(requirements: Requirements, given: str) -> Place:
    request = parse_accelerator(given.upper())
    if request is None or request.accelerator is None:
        meant = ":".join(given.upper().rpartition("X")[::2])
        known = parse_accelerator(meant)
        hint = f" Did you mean {meant}?" if known and known.accelerator else ""
        raise SettingsError(
            f"{requirements.option} is {given!r}; it must be one of {', '.join(ACCELERATORS)}, "
            f"with a colon and a number for several, such as H100:2.{hint}"
        )
    degrees = requirements.degrees
    if ":" in given and len(degrees) > 1:
        degrees = [request.count * requirements.nodes // requirements.others or 1]
    attempts = []
    for degree in degrees:
        count = request.count if ":" in given else requirements.gpus(degree)
        spec = _spec(request.name, count)
        verdict = requirements.try_out(spec, degree)
        attempts.append(verdict)
        if not verdict.errors:
            summary = f": {verdict.capacity.summary}" if verdict.capacity else ""
            return Place(spec, degree, verdict, f"named by {requirements.option}{summary}.")
    raise SettingsError(f"{requirements.option} is {given!r}: {' '.join(attempts[-1].errors)}")


def _by_memory(requirements: Requirements) -> Iterator[tuple[Accelerator, int]]:
    """Yield the kinds and degrees to try, those with the least total memory first."""
    kinds = [row for row in ACCELERATORS.values() if _is_candidate(row, requirements)]
    pairs = [(row, degree) for row in kinds for degree in requirements.degrees]
    pairs.sort(key=lambda pair: (pair[0].memory_bytes * pair[1], pair[1]))
    for accelerator, degree in pairs:
        if degree * requirements.others == 1 or accelerator.name not in _SLICES:
            yield accelerator, degree


def _is_candidate(accelerator: Accelerator, requirements: Requirements) -> bool:
    capability = accelerator.compute_capability
    if requirements.capability is not None:
        return capability == requirements.capability
    chosen = _CHOSEN.get(_dotted(capability))
    return chosen is not None and chosen.holds(requirements.version)


def _spec(name: str, count: int) -> str:
    return name if count == 1 else f"{name}:{count}"


def _dotted(capability: ComputeCapability) -> str:
    return f"{capability[0]}.{capability[1]}"


S3_SECRET = "aws_credentials"  # noqa: S105 - the secret's name
_FOLDERS = {
    "engine_repository": "/models/engine",
    "tokenizer_repository": "/models/tokenizer",
    "build.checkpoint_repository": "/models/checkpoint",
}
_DISTRIBUTION = "trtllm-truss"
_PIN = re.compile(r"truss\s*==\s*([0-9][0-9a-z.]*)\s*;")


class Delivery(NamedTuple):
    """The repositories that the platform mounts, and those that the start downloads.

    Attributes:
        weights: section of config.yaml.
        revisions: commit by the key of its repository.
        downloaded_bytes: size of the start's downloads.
        left: repositories that the start downloads.
    """

    weights: Sequence[Mapping[str, Any]]
    revisions: Mapping[str, str]
    downloaded_bytes: int
    left: Sequence[str]


def deliver(needs: Sequence[Need], *, wanted: bool, with_token: bool) -> Delivery:
    """Plan the delivery of all remote files.

    Args:
        needs: files that a start reads, by repository.
        wanted: False leaves all of them to the start.
        with_token: the repositories were read with a token, so the platform needs one too.
    """
    entries: dict[str, dict[str, Any]] = {}
    revisions: dict[str, str] = {}
    left = []
    adapters = [need.setting for need in needs if need.setting.startswith(ADAPTER)]
    folders = {**_FOLDERS, **{name: f"/models/adapter-{n}" for n, name in enumerate(adapters, 1)}}
    for need in needs:
        if not is_remote(need.repository):
            continue
        commit = need.source.listing().commit
        if not wanted or (is_on_hub(need.repository) and not is_commit(commit)):
            left.append(need)
            continue
        source, secret = need.repository, S3_SECRET
        if is_on_hub(need.repository):
            source, secret = f"hf://{need.repository}@{commit}", ACCESS_TOKEN_SECRET
            revisions[need.setting] = commit
        entry = entries.setdefault(
            source, {"source": source, "mount_location": folders[need.setting], "paths": set()}
        )
        entry["paths"] |= {*need.paths}
        if with_token or secret == S3_SECRET:
            entry["auth"] = {"auth_method": "CUSTOM_SECRET", "auth_secret_name": secret}
    return Delivery(
        [_with_patterns(entry) for entry in entries.values()],
        revisions,
        sum(need.total_bytes for need in left),
        [need.repository for need in left],
    )


def known_truss() -> str | None:
    """Return the release of Truss that this one is tested with; None if not installed by pip."""
    try:
        required = metadata.requires(_DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:
        return None
    return next((found[1] for line in required if (found := _PIN.match(line))), None)


def _with_patterns(entry: dict[str, Any]) -> dict[str, Any]:
    paths = entry.pop("paths")
    auth = entry.pop("auth", None)
    entry["allow_patterns"] = [escape(path) for path in sorted(paths)]
    return entry if auth is None else {**entry, "auth": auth}
