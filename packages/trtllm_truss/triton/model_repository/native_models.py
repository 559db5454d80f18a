"""Text models of the repository, for clients of Triton's own API.

Source of names, types and shapes: the models of the same names in
``triton_backend/all_models/inflight_batcher_llm`` of NVIDIA/TensorRT-LLM (1.0) and
``all_models/inflight_batcher_llm`` of triton-inference-server/tensorrtllm_backend (up to 0.19).
:mod:`trtllm_truss.backends.triton_native` implements them.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_truss.errors import SettingsError
from trtllm_truss.releases.contract import INPUTS, OUTPUTS
from trtllm_truss.releases.facts import holds
from trtllm_truss.releases.tables import rows_for
from trtllm_truss.request_fields import SAMPLING
from trtllm_truss.triton.model_repository.repository import CONFIG_FILE, read_config, write_config
from trtllm_truss.triton.protobuf import model_config_pb2

PREPROCESSING = "preprocessing"
POSTPROCESSING = "postprocessing"
BLS = "tensorrt_llm_bls"
ENSEMBLE = "ensemble"

_VERSION_FOLDER = "1"
_OLDER_NAMES = {
    **{row.name: older for row in SAMPLING for older in row.tensors[1:]},
    "return_perf_metrics": "return_kv_cache_reuse_stats",
}
_ENGINE_NAMES = frozenset(row.name for row in (*INPUTS, *OUTPUTS))


@dataclass(frozen=True, slots=True)
class InstanceCounts:
    preprocessing: int = 1
    postprocessing: int = 1
    bls: int = 1


def render_native_models(
    template_dir: Path,
    destination: Path,
    *,
    tokenizer_dir: Path,
    trust_remote_code: bool = False,
    max_batch_size: int,
    counts: InstanceCounts,
    tensorrt_llm_version: str | None,
    decoupled: bool = True,
) -> None:
    """Write the four models into a repository; replace earlier ones.

    Args:
        template_dir: holds each model's ``config.pbtxt`` and, except for the ensemble,
            ``1/model.py``.
        destination: the repository.
        tokenizer_dir: the tokenizer's files.
        trust_remote_code: see `load_tokenizer`.
        max_batch_size: maximum of concurrent requests of the engine.
        counts: processes of each model.
        tensorrt_llm_version: selects the declared names; None declares those of every version.
        decoupled: let `ensemble` and `tensorrt_llm_bls` send several responses to one request.
            `tensorrt_llm` always does, because the Truss streams from it.

    Raises:
        SettingsError: a template is missing or invalid, or that Triton requires `decoupled`.
    """
    if not decoupled and not holds(
        "senders_without_decoupled", tensorrt_llm_version or None, unknown=True
    ):
        raise SettingsError(
            "config.yaml: model_metadata.serving.triton_decoupled_mode is false, which works from "
            f"TensorRT-LLM 0.10 (image 24.06) on, and this is {tensorrt_llm_version}; remove the "
            "setting or use a newer image."
        )
    instances = {
        PREPROCESSING: counts.preprocessing,
        POSTPROCESSING: counts.postprocessing,
        BLS: counts.bls,
        ENSEMBLE: None,
    }
    for name, count in instances.items():
        config = read_config(template_dir / name / CONFIG_FILE)
        config.max_batch_size = max_batch_size
        if count is not None:
            config.instance_group[0].count = count
            config.parameters["tokenizer_dir"].string_value = str(tokenizer_dir)
            config.parameters["trust_remote_code"].string_value = str(trust_remote_code).lower()
        if name in (BLS, ENSEMBLE):
            _fit(config, tensorrt_llm_version)
            config.model_transaction_policy.decoupled = decoupled
        folder = write_config(config, destination)
        if count is not None:
            shutil.copy2(template_dir / name / _VERSION_FOLDER / "model.py", folder)


def _fit(config: model_config_pb2.ModelConfig, version: str | None) -> None:
    """Declare the engine's tensors on a pass-through model."""
    known = {row.name for row in (*rows_for(INPUTS, version), *rows_for(OUTPUTS, version))}
    for fields in (config.input, config.output):
        _rename(fields, known)
    for step in config.ensemble_scheduling.step:
        for mapping, fields in ((step.input_map, config.input), (step.output_map, config.output)):
            mapping.clear()
            mapping.update({field.name: field.name for field in fields})


def _rename(fields: Any, known: set[str]) -> None:
    for field in tuple(fields):
        older = _OLDER_NAMES.get(field.name)
        if older in known:
            fields.add().CopyFrom(field)
            fields[-1].name = older
        if field.name in _ENGINE_NAMES and field.name not in known:
            fields.remove(field)
