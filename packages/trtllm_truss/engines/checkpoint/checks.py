"""Compatibility of a checkpoint with the settings and the TensorRT-LLM release that loads it.

None of these checks needs the weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from trtllm_truss.engines.adapters import Adapter
from trtllm_truss.engines.checkpoint.adapters import check_adapters
from trtllm_truss.engines.checkpoint.arguments import CHUNKED, chunks, reuses, unused_keys
from trtllm_truss.engines.checkpoint.samplers import SPECULATION, honours_seeds
from trtllm_truss.engines.checkpoint.weights import ARCHITECTURES, UNSERVED, WeightFormat
from trtllm_truss.engines.diagnostics import Diagnostic, error, warning
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import IMAGES
from trtllm_truss.engines.model_config import Checkpoint
from trtllm_truss.releases import FACTS, Release, dotted, holds, release
from trtllm_truss.settings.model import Settings

_EXPERT_SIZES = ("moe_tensor_parallel_size", "moe_expert_parallel_size")
_CLUSTERS = "moe_cluster_parallel_size"
_NO_TRITON = re.compile(r"(^|/)tensorrt-llm/release:")


class CompletedCheckpoint(Protocol):
    """The parts of a checkpoint's engine, with the settings applied, that the checks read."""

    @property
    def checkpoint(self) -> Checkpoint: ...
    @property
    def weight_format(self) -> WeightFormat: ...
    @property
    def llm_args(self) -> Mapping[str, Any]: ...
    @property
    def adapters(self) -> Sequence[Adapter]: ...
    @property
    def takes_adapters(self) -> bool: ...
    @property
    def tensor_parallelism(self) -> int: ...
    @property
    def pipeline_parallelism(self) -> int: ...
    @property
    def max_sequence_tokens(self) -> int: ...
    @property
    def max_beam_width(self) -> int: ...


def check_checkpoint(
    engine: CompletedCheckpoint, settings: Settings, host: HostInfo
) -> Iterator[Diagnostic]:
    """Yield mismatches of a completed checkpoint."""
    checkpoint, weights = engine.checkpoint, engine.weight_format
    version = host.known_version
    yield from _image(host)
    yield from _release(version, host)
    yield from _corruption(version)
    yield from _architecture(checkpoint, version)
    yield from _weight_format(weights, version)
    yield from _split(checkpoint, engine)
    yield from _experts(engine)
    yield from _limits(checkpoint, engine)
    yield from _seeds(engine, version)
    yield from _combinations(engine, version)
    yield from check_adapters(engine.adapters, checkpoint, engine.llm_args, version)
    if checkpoint.has_code and not settings.trust_remote_code:
        yield warning(
            "checkpoint_has_code",
            f"the checkpoint has Python code of its own (auto_map), which is not run; if the start "
            f"fails because transformers does not know model_type {checkpoint.model_type!r}, set "
            "trust_remote_code: true if you trust its author.",
        )
    yield from unused_keys(settings, version)


def loadable_since(checkpoint: Checkpoint) -> str:
    """Return a sentence with the first TensorRT-LLM release that loads the architecture."""
    known = ARCHITECTURES.get(checkpoint.architecture)
    if known is not None:
        return f"{checkpoint.architecture}: TensorRT-LLM {_from(known.since)}"
    return f"{checkpoint.architecture}: {_reason(checkpoint.architecture)}"


def _image(host: HostInfo) -> Iterator[Diagnostic]:
    if host.image is not None and _NO_TRITON.search(host.image):
        yield error(
            "image_without_triton",
            f"config.yaml: base_image.image is {host.image}, which does not contain Triton; set "
            f"it to {IMAGES[-1].name}.",
        )


def _release(version: str | None, host: HostInfo) -> Iterator[Diagnostic]:
    if not holds("serves_checkpoints", version):
        where = "the installed runtime" if host.runtime_version else "config.yaml's image"
        yield error(
            "checkpoint_needs_newer_runtime",
            f"{where} has TensorRT-LLM {version}, and checkpoints are served from "
            f"{_from(FACTS['serves_checkpoints'].since)}; set base_image.image to "
            f"{IMAGES[-1].name}.",
        )


def _corruption(version: str | None) -> Iterator[Diagnostic]:
    if holds("corrupts_kv_cache", version, unknown=False):
        mended = dotted(FACTS["corrupts_kv_cache"].until or ())
        yield warning(
            "release_corrupts_kv_cache",
            f"TensorRT-LLM {version} may corrupt its KV cache, which is fixed in {mended}; set "
            f"base_image.image to {IMAGES[-1].name}.",
        )


def _architecture(checkpoint: Checkpoint, version: str | None) -> Iterator[Diagnostic]:
    name = checkpoint.architecture
    known = ARCHITECTURES.get(name)
    if known is None:
        sentence = f"{name} of the checkpoint's config.json is not served: {_reason(name)}"
        if not holds("knows_architectures", version) and name not in UNSERVED:
            yield warning("architecture_unknown", f"{sentence}; TensorRT-LLM {version} decides.")
        else:
            yield error("architecture_unknown", f"{sentence}; name another checkpoint.")
    elif _is_before(version, known.since):
        yield error(
            "architecture_needs_newer_runtime",
            f"{name} of the checkpoint's config.json is loaded from TensorRT-LLM "
            f"{_from(known.since)}, and this is {version}; {_remedy(known.since)}.",
        )


def _weight_format(weights: WeightFormat, version: str | None) -> Iterator[Diagnostic]:
    if weights.since is None:
        yield error(
            "weights_unreadable",
            f"the checkpoint's weights are quantized by {weights.name}, which TensorRT-LLM takes "
            "for unquantized; name the original checkpoint, or one in ModelOpt's format "
            "(hf_quant_config.json).",
        )
    elif _is_before(version, weights.since):
        yield error(
            "weights_need_newer_runtime",
            f"the checkpoint's weights are quantized by {weights.name}, which is read from "
            f"TensorRT-LLM {_from(weights.since)}, and this is {version}; "
            f"{_remedy(weights.since)}, or name a checkpoint in ModelOpt's format "
            "(hf_quant_config.json).",
        )


def _split(checkpoint: Checkpoint, engine: CompletedCheckpoint) -> Iterator[Diagnostic]:
    tensor, pipeline = engine.tensor_parallelism, engine.pipeline_parallelism
    whole = engine.llm_args.get("enable_attention_dp")
    uneven = []
    if not whole and checkpoint.heads % tensor:
        uneven.append(f"{checkpoint.heads} attention heads")
    kv_heads = {heads for heads in checkpoint.cache_heads if heads}
    if not whole and checkpoint.latent_size is None:
        uneven += [
            f"{heads} key/value heads" for heads in sorted(kv_heads) if _is_uneven(heads, tensor)
        ]
    if uneven:
        yield error(
            "tensor_parallelism_uneven",
            f"config.yaml: model_metadata.tensor_parallelism is {tensor}, which does not divide "
            f"the checkpoint's {' and '.join(uneven)}; set it to {_largest_split(checkpoint)}.",
        )
    stages = engine.llm_args.get("pp_partition")
    if stages and (len(stages), sum(stages)) != (pipeline, checkpoint.layers):
        yield error(
            "pp_partition_mismatch",
            f"config.yaml: model_metadata.runtime.llm_args.pp_partition is {stages}; it must have "
            f"pipeline_parallelism, {pipeline}, numbers whose sum is the checkpoint's "
            f"{checkpoint.layers} layers.",
        )
    if pipeline > checkpoint.layers:
        yield error(
            "pipeline_parallelism_above_layers",
            f"config.yaml: model_metadata.pipeline_parallelism is {pipeline}, but the checkpoint "
            f"has {checkpoint.layers} layers; lower it.",
        )


def _experts(engine: CompletedCheckpoint) -> Iterator[Diagnostic]:
    arguments = engine.llm_args
    names = (*_EXPERT_SIZES, _CLUSTERS)
    given = {name: arguments[name] for name in names if arguments.get(name)}
    product = math.prod(given.values())
    tensor = engine.tensor_parallelism
    if product != tensor if given.keys() >= {*_EXPERT_SIZES} else tensor % product:
        sizes = " and ".join(f"{name} {size}" for name, size in given.items())
        yield error(
            "expert_parallelism_mismatch",
            f"config.yaml: model_metadata.runtime.llm_args sets {sizes}, and tensor × expert "
            f"parallelism of the experts must be tensor_parallelism, {tensor}; change either.",
        )


def _limits(checkpoint: Checkpoint, engine: CompletedCheckpoint) -> Iterator[Diagnostic]:
    arguments, beams = engine.llm_args, engine.max_beam_width
    longest = checkpoint.positions
    if longest and engine.max_sequence_tokens > longest and not arguments.get("model_kwargs"):
        yield error(
            "max_seq_len_above_model",
            f"config.yaml: model_metadata.runtime.llm_args.max_seq_len is "
            f"{engine.max_sequence_tokens}, but the model's positions end at {longest}; lower it.",
        )
    if beams > 1:
        yield warning(
            "one_beam_width",
            f"runtime.max_beam_width is {beams}: the LLM API runs all requests with {beams} beams, "
            f"so those without beam_width {beams} are refused; remove it to serve them.",
        )


def _seeds(engine: CompletedCheckpoint, version: str | None) -> Iterator[Diagnostic]:
    arguments = engine.llm_args
    if version is None or honours_seeds(version, arguments):
        return
    name = next((name for name in ("speculative_config", "sampler_type") if name in arguments), "")
    remedy = f"remove runtime.llm_args.{name}" if name else "use a later release"
    yield warning(
        "seeds_ignored",
        f"the PyTorch sampler of TensorRT-LLM {version} ignores a request's seed, so equal "
        f"seeds give different responses; {remedy} if clients rely on them.",
    )


def _combinations(engine: CompletedCheckpoint, version: str | None) -> Iterator[Diagnostic]:
    """Yield settings that TensorRT-LLM does not support for the model, or not yet."""
    arguments, checkpoint = engine.llm_args, engine.checkpoint
    reuse = (arguments.get("kv_cache_config") or {}).get("enable_block_reuse")
    for name, is_on, has in (
        (CHUNKED, arguments.get(CHUNKED), chunks(checkpoint, version)),
        ("kv_cache_config.enable_block_reuse", reuse, reuses(checkpoint, version)),
    ):
        if is_on and not has:
            yield warning(
                "feature_unsupported",
                f"config.yaml: model_metadata.runtime.llm_args.{name} (or the key of runtime "
                f"that sets it) is true, which TensorRT-LLM {version or ''} does not support "
                f"for {checkpoint.architecture}; remove it.".replace("  ", " "),
            )
    if engine.takes_adapters and arguments.get(SPECULATION):
        yield warning(
            "combination_untested",
            f"lora_adapters is set with {SPECULATION}, which NVIDIA has not tested together "
            "(features/feature-combination-matrix of TensorRT-LLM); compare answers, or remove "
            "one of them.",
        )


def _is_uneven(heads: int, tensor: int) -> bool:
    """Return True unless all GPUs get the same number of heads.

    Fewer heads than GPUs are copied.
    """
    return max(heads, tensor) % min(heads, tensor) != 0


def _largest_split(checkpoint: Checkpoint) -> str:
    heads = {heads for heads in checkpoint.cache_heads if heads and not checkpoint.latent_size}
    fitting = [
        tensor
        for tensor in range(1, 9)
        if not checkpoint.heads % tensor and not any(_is_uneven(h, tensor) for h in heads)
    ]
    return " or ".join(map(str, fitting))


def _is_before(version: str | None, since: Release) -> bool:
    return version is not None and release(version) < since


def _reason(architecture: str) -> str:
    return UNSERVED.get(architecture, "TensorRT-LLM's PyTorch backend has no such architecture")


def _from(since: Release) -> str:
    number = dotted(since)
    image = next((image for image in IMAGES if release(image.tensorrt_llm) >= since), None)
    return f"{number} on (image {image.tag})" if image else f"{number} on (no Triton image yet)"


def _remedy(since: Release) -> str:
    newest = IMAGES[-1]
    if release(newest.tensorrt_llm) >= since:
        return f"set base_image.image to {newest.name}"
    return "no Triton image contains it yet: use one that you built"
