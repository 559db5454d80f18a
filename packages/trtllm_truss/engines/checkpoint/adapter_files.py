"""The files of a LoRA adapter: PEFT's configuration, and the names and shapes of its weights.

TensorRT-LLM reads `r`, `lora_alpha` and `use_rslora` of the configuration. It determines the
adapted layers and their ranks from the weights alone, so ``target_modules`` may be names, paths, a
pattern or ``all-linear``. It fails on weights that it cannot read and ignores unknown ones, which
gives wrong responses. This module refuses both, naming the field or the weight.

Sources:

- ``HF_LORA_PATTERN``, ``iterate_hf_lora`` and ``load_from_hf`` in NVIDIA/TensorRT-LLM:
  ``tensorrt_llm/lora_manager.py`` at 007e181b (near 1.0), near 1.1 and 1.2, and
  ``_torch/peft/lora/{loaders,manager}.py`` late in 1.3.0. A name that does not match is a KeyError,
  but one that contains ``lm_head`` or ``embed_tokens`` is ignored. Up to 1.2 an unknown module is
  an AssertionError; later it is skipped. The scale is ``lora_alpha`` over the rank of each matrix,
  so that ``rank_pattern`` is applied and ``alpha_pattern`` is not.
- ``LoraLayer.forward`` of ``_torch/peft/lora/layer.py`` at 98277545 does not read the magnitudes of
  DoRA.
- ``LoraConfig`` of huggingface/peft, 0.11.1 to 0.21.2, and its variants.
- https://huggingface.co/docs/safetensors: eight bytes with the length of a JSON object, the
  object, and the tensors without gaps.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from stat import S_ISFIFO
from typing import Any, TypeGuard

from trtllm_truss.engines.adapters import ADAPTER_CONFIG, AdaptedLayer, Adapter
from trtllm_truss.engines.diagnostics import shortlist
from trtllm_truss.errors import ArtifactError
from trtllm_truss.json_files import parse_json
from trtllm_truss.validation import shown

WEIGHTS_FILE = "adapter_model.safetensors"
FILES = (ADAPTER_CONFIG, WEIGHTS_FILE)
"""The files of an adapter; pickled weights are not accepted."""

HEAD_BYTES = 1 << 20
"""Read at once; the names of 80 layers with seven matrices each take 150 kB."""

_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_LFS_POINTER = b"version https://git-lfs"
_METADATA = "__metadata__"
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
}
_APPLIED_TYPES = ("BF16", "F16", "F32", "F64")
_MERGE = "or merge it into the checkpoint"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file in the format safetensors."""

    dtype: str
    shape: tuple[int, ...]


def read_adapter(name: str, config: bytes, weights: Callable[[int], bytes], size: int) -> Adapter:
    """Read an adapter without its tensors.

    Args:
        name: its key in `lora_adapters`.
        config: the contents of ``adapter_config.json``.
        weights: returns the given number of bytes from the start of ``adapter_model.safetensors``.
        size: size of that file in bytes.

    Raises:
        ArtifactError: a file is damaged, or no TensorRT-LLM release applies the adapter as it is.
    """
    _check_config(config)
    return Adapter(name, _layers(read_header(WEIGHTS_FILE, weights, size)))


def read_adapter_folder(name: str, folder: Path) -> Adapter:
    """Read an adapter on this machine.

    Raises:
        ArtifactError: as in `read_adapter`, or a file is missing.
    """
    try:
        for each in FILES:  # reading a pipe would block
            if S_ISFIFO((folder / each).stat().st_mode):
                raise ArtifactError(f"{each} cannot be read (a pipe).")
        file = folder / WEIGHTS_FILE
        with file.open("rb") as opened:

            def head(count: int) -> bytes:
                opened.seek(0)
                return opened.read(count)

            config = (folder / ADAPTER_CONFIG).read_bytes()
            return read_adapter(name, config, head, file.stat().st_size)
    except OSError as error:
        missing = Path(str(error.filename)).name
        raise ArtifactError(f"{missing} cannot be read ({error.strerror}).") from None


def read_header(name: str, read: Callable[[int], bytes], size: int) -> dict[str, Tensor]:
    """Read the names, types and shapes of a file's tensors, and check that the file is complete.

    Args:
        name: name of the file, for messages.
        read: returns the given number of bytes from the start; called a second time only for a long
            header.
        size: bytes of the file.

    Raises:
        ArtifactError: the file is damaged, or in another format.
    """
    head = read(min(HEAD_BYTES, size))
    if head.startswith(_LFS_POINTER):
        raise ArtifactError(f"{name} is a Git LFS pointer; run `git lfs pull` in the repository.")
    length = _LENGTH.unpack_from(head)[0] if len(head) >= _LENGTH.size else size
    end = _LENGTH.size + length
    if end > min(size, _MAX_HEADER_BYTES):
        raise _damaged(name, f"its header would end at byte {end}, and it has {size}")
    if end > len(head):
        head = read(end)
    header = parse_json(f"the header of {name}", head[_LENGTH.size : end])
    if not isinstance(header, Mapping):
        raise _damaged(name, "its header is not a JSON object")
    tensors = {str(key): value for key, value in header.items() if key != _METADATA}
    _check_places(name, tensors, size - end)
    return {key: Tensor(value["dtype"], tuple(value["shape"])) for key, value in tensors.items()}


def _check_places(name: str, tensors: Mapping[str, Any], total_bytes: int) -> None:
    """Check that the tensors fill the rest of the file without gaps."""
    places = []
    for key, value in tensors.items():
        entry = value if isinstance(value, Mapping) else {}
        dtype, shape, place = (entry.get(field) for field in ("dtype", "shape", "data_offsets"))
        if not (isinstance(dtype, str) and _is_whole(shape) and _is_whole(place, 2)):
            raise _damaged(name, f"its header does not describe {shown(key)}")
        bits = _BITS.get(dtype)
        if bits is not None and prod(shape) * bits != 8 * (place[1] - place[0]):
            raise _damaged(name, f"{shown(key)} has another size than its shape {shown(shape)}")
        places.append(place)
    end = 0
    for start, stop in sorted(places):
        if start != end or stop < start:
            raise _damaged(name, "its tensors overlap or have gaps")
        end = stop
    if end != total_bytes:
        raise _damaged(name, f"its tensors have {end} bytes, and {total_bytes} are there")


def _is_whole(value: object, count: int | None = None) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and count in (None, len(value))
        and all(type(number) is int and number >= 0 for number in value)
    )


def _damaged(name: str, reason: str) -> ArtifactError:
    return ArtifactError(f"{name} is damaged: {reason}; upload it again.")


_REFUSED_FIELDS = {
    "use_dora": "DoRA's magnitudes",
    "modules_to_save": "whole layers",
    "trainable_token_indices": "trained tokens",
    "target_parameters": "an adapter of parameters, such as those of fused experts",
    "lora_bias": "biases",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "an adapter that starts at a later token of the prompt",
    "use_qalora": "pooled inputs",
    "use_bdlora": "block-diagonal matrices",
    "arrow_config": "a router between adapters",
    "kasa_config": "singular values",
    "monteclora_config": "sampled matrices",
}
"""Fields that change the effect of an adapter and that TensorRT-LLM would have to apply."""

_CHANGES_THE_MODEL = ("pissa", "olora", "corda", "lora_ga", "loftq")
"""Prefixes of `init_lora_weights` with which PEFT changes the model's own weights.

LoftQ replaces them with quantized ones (``loftq_init`` of ``peft/tuners/lora/layer.py``); the
others subtract the first matrices.
"""

_LARGEST = 3e38  # of FP32, in which adapters are scaled


def _check_config(content: bytes) -> None:
    config = parse_json(ADAPTER_CONFIG, content)
    if not isinstance(config, Mapping):
        raise ArtifactError(f"{ADAPTER_CONFIG} is not a JSON object; fetch it again.")
    if (kind := config.get("peft_type")) != "LORA":
        raise ArtifactError(
            f"{ADAPTER_CONFIG} has peft_type {shown(kind)}; only LORA adapters are applied."
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or rank < 1:
        raise ArtifactError(
            f"{ADAPTER_CONFIG} has the rank r {shown(rank)}; it must be a number above 0."
        )
    is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if alpha is None or not (is_number and abs(alpha) < _LARGEST):
        raise ArtifactError(f"{ADAPTER_CONFIG} has lora_alpha {shown(alpha)}; it must be a number.")
    for field, what in _REFUSED_FIELDS.items():
        if config.get(field):
            raise ArtifactError(
                f"{ADAPTER_CONFIG} sets {field}, and TensorRT-LLM does not apply {what}; train the "
                f"adapter without it, {_MERGE}."
            )
    patterns = config.get("alpha_pattern")
    if isinstance(patterns, Mapping) and any(value != alpha for value in patterns.values()):
        raise ArtifactError(
            f"{ADAPTER_CONFIG} sets alpha_pattern, and TensorRT-LLM scales all layers by "
            f"lora_alpha, {alpha:g}; train the adapter with one lora_alpha, {_MERGE}."
        )
    start = str(config.get("init_lora_weights")).lower()
    if start.startswith(_CHANGES_THE_MODEL):
        raise ArtifactError(
            f"{ADAPTER_CONFIG} has init_lora_weights {shown(start)}, which also changes the "
            f"model; save the adapter with path_initial_model_for_weight_conversion, {_MERGE}."
        )


_MATRIX = re.compile(
    r"(?P<stack>[\w.]+?)\.layers\.(?P<layer>[0-9]{1,5})\.(?P<path>\w+(\.\w+)+)"
    r"\.lora_(?P<side>[AB])\.weight",
    re.ASCII,
)
_OTHER_STACK = re.compile(r"vision|visual|audio|speech|image|encoder|tower|mtp", re.I)
"""Names of model parts whose numbered layers TensorRT-LLM mistakes for text layers."""

_PLAIN = re.compile(r"[\w.-]{1,200}", re.ASCII)
_EXPERTS = "experts"
_OTHERS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\.(lora_magnitude_vector|weight_m_wdecomp)\b"), "DoRA's magnitudes"),
    (re.compile(rf"\.{_EXPERTS}\."), "adapters to routed experts"),
    (re.compile(r"\.bias$"), "biases"),
    (re.compile(r"\.trainable_tokens_"), "trained tokens"),
    (re.compile(r"\blm_head\b"), "adapters to the output layer"),
    (re.compile(r"\bembed_tokens\b|\.lora_embedding_"), "adapters to embeddings"),
)


def _layers(tensors: Mapping[str, Tensor]) -> tuple[AdaptedLayer, ...]:
    """Pair the matrices of each layer.

    Raises:
        ArtifactError: a tensor belongs to no decoder layer, or does not match the others.
    """
    matrices = {name: match for name in tensors if (match := _matrix(name))}
    if others := [name for name in tensors if name not in matrices]:
        raise _refusal(others, _kind(others[0]))
    if not matrices:
        raise ArtifactError(f"{WEIGHTS_FILE} holds no tensor; save the adapter again.")
    return tuple(_paired(tensors, matrices))


def _matrix(name: str) -> re.Match[str] | None:
    match = _MATRIX.fullmatch(name)
    if match is None or _OTHER_STACK.search(match["stack"]):
        return None
    parts = match["path"].split(".")
    return None if _EXPERTS in parts or "cross" in parts[0] else match


def _kind(name: str) -> str:
    for pattern, kind in _OTHERS:
        if pattern.search(name):
            return kind
    if _OTHER_STACK.search(name):
        return "adapters to other parts of the model than its text layers"
    return "weights of such a name"


def _refusal(names: list[str], what: str) -> ArtifactError:
    return ArtifactError(
        f"{WEIGHTS_FILE} holds {shortlist([*map(_named, sorted(names))])}: TensorRT-LLM does not "
        f"apply {what}; train the adapter without them, {_MERGE}."
    )


def _named(tensor: str) -> str:
    return tensor if _PLAIN.fullmatch(tensor) else shown(tensor)


def _paired(
    tensors: Mapping[str, Tensor], matrices: Mapping[str, re.Match[str]]
) -> Iterator[AdaptedLayer]:
    pairs: dict[tuple[int, str], dict[str, str]] = {}
    for name, match in matrices.items():
        pairs.setdefault((int(match["layer"]), match["path"]), {})[match["side"]] = name
    read_as: dict[tuple[int, str], str] = {}
    for (layer, path), sides in sorted(pairs.items()):
        if missing := {"A", "B"} - sides.keys():
            (there,) = sides.values()
            raise ArtifactError(
                f"{WEIGHTS_FILE} holds {there} without its lora_{missing.pop()}; save it again."
            )
        one, two = (tensors[sides[side]] for side in "AB")
        for name, tensor in ((sides["A"], one), (sides["B"], two)):
            if tensor.dtype not in _APPLIED_TYPES:
                raise ArtifactError(
                    f"{WEIGHTS_FILE} holds {name} as {tensor.dtype}; save the adapter as BF16, F16 "
                    "or F32."
                )
        if len(one.shape) != 2 or len(two.shape) != 2 or not 0 < one.shape[0] == two.shape[1]:
            raise ArtifactError(
                f"{WEIGHTS_FILE} holds {sides['A']} of shape {list(one.shape)} and its lora_B "
                f"of {list(two.shape)}, which do not match; save the adapter again."
            )
        found = AdaptedLayer(sides["A"], layer, path, one.shape[0], one.shape[1], two.shape[0])
        other = read_as.setdefault((layer, found.module), found.tensor)
        if other != found.tensor:
            raise ArtifactError(
                f"{WEIGHTS_FILE} holds {other} and {found.tensor}, which TensorRT-LLM takes for "
                f"one layer; train the adapter with one of them, {_MERGE}."
            )
        yield found
