"""A Triton model repository of `inflight_batcher_llm`: the parameters of its models.

Source: `triton_backend/all_models/inflight_batcher_llm` in NVIDIA/TensorRT-LLM, and
`docs/model_config.md` in triton-inference-server/tensorrtllm_backend. The rules of the parameters
follow from `releases/parameters.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtllm_truss.errors import SettingsError
from trtllm_truss.releases import describe_releases, rows_for
from trtllm_truss.settings.runtime import PARAMETERS
from trtllm_truss.triton.model_repository import read_config
from trtllm_workbench.importers.files import read_text
from trtllm_workbench.importers.rules import (
    ConversionResult,
    Given,
    OptionRule,
    Outcome,
    RuleTable,
    apply_rules,
    flag,
    not_needed,
    unsupported,
)

CONFIG = "config.pbtxt"
ENGINE = "tensorrt_llm"
BESIDE = ("preprocessing", "postprocessing", "ensemble", "tensorrt_llm_bls")
"""Models for text next to the engine's."""

_OPEN_FIELD = re.compile(r"(?m)^[^\"\n#]*(\$\{\w+\})")
_PLACEHOLDER = re.compile(r"\$\{\w+\}")
_NATIVE = "text is made in Truss's process; for clients of Triton itself set serving.triton_native"
_QUEUE = "requests wait before Triton; serving.queue_limit and queue_timeout_s bound it"
_CONVERT: Mapping[str, Callable[[str], object]] = {"int": int, "float": float, "bool": flag}
_TENSORS = "the models have the tensors of NVIDIA's"


def _parameters(version: str | None) -> Iterator[OptionRule]:
    """Yield the rules of the engine's parameters."""
    here = PARAMETERS if version is None else rows_for(PARAMETERS, version)
    known = {row.name for row in here}
    for row in {row.name: row for row in PARAMETERS}.values():
        name = f"{ENGINE}.{row.name}"
        if row.name == "gpt_model_path":
            yield OptionRule(name=name, target="engine_repository")
        elif row.name == "gpt_model_type":
            yield from not_needed("requests are always batched in flight", name, only=row.choices)
        elif row.name == "exclude_input_in_output":
            yield from not_needed("a response never repeats its prompt", name)
        elif row.name in ("executor_worker_path", "tokenizer_dir"):
            yield from not_needed("this server sets it", name)
        elif row.name == "num_nodes":
            yield from not_needed("`nodes` sets it", name, only=("1",))
        elif row.name == "speculative_decoding_fast_logits":
            yield from not_needed("it needs orchestrator mode", name, only=("false", "0"))
        elif row.name not in known:
            release = f"a parameter of TensorRT-LLM {describe_releases(row)}"
            yield from unsupported(
                f"{release}; {row.instead or f'the image has {version}'}".rstrip("."), name
            )
        else:
            yield OptionRule(
                name=name, target=f"runtime.{row.name}", convert=_CONVERT.get(row.kind, str)
            )


_ENGINE = (
    OptionRule(name=f"{ENGINE}.max_batch_size", target="runtime.max_batch_size", convert=int),
    *not_needed("the engine's folder determines the backend", f"{ENGINE}.backend"),
    *not_needed("an answer can always be streamed", "*.decoupled"),
)
_TEXT = (
    OptionRule(name="preprocessing.tokenizer_dir", target="tokenizer_repository"),
    *not_needed("preprocessing's names the tokenizer", "postprocessing.tokenizer_dir"),
    *not_needed("the tokenizer's files say so", "preprocessing.tokenizer_type"),
    *not_needed("the tokenizer's files say so", "postprocessing.tokenizer_type"),
    *not_needed("a prompt has its special tokens once", "preprocessing.add_special_tokens"),
    *not_needed("special tokens do not show", "postprocessing.skip_special_tokens"),
    *not_needed("text is decoded exactly", "tensorrt_llm_bls.accumulate_tokens"),
    *not_needed(
        "one engine is served",
        "tensorrt_llm_bls.tensorrt_llm_model_name",
        only=(ENGINE,),
    ),
    *unsupported(
        "draft models are not supported; a checkpoint has runtime.llm_args.speculative_config",
        "tensorrt_llm_bls.tensorrt_llm_draft_model_name",
    ),
    *unsupported(
        "only text is served",
        *(f"{model}.multimodal_model_path" for model in BESIDE),
        *("preprocessing.gpt_model_path", "preprocessing.engine_dir", "preprocessing.visual_*"),
        *("preprocessing.max_num_images", "tensorrt_llm_bls.multimodal_encoders_name"),
        *("preprocessing.num_vision_features", "preprocessing.shared_dir"),
    ),
)
_TEXT_FIELDS = ("backend", "max_batch_size", "instance_group", "decoupled", "dynamic_batching")
SECTIONS = {
    "The engine's model": (*_ENGINE, *_parameters(None)),
    "Models for text": (
        *_TEXT,
        *not_needed(_NATIVE, *(f"{model}.{field}" for model in BESIDE for field in _TEXT_FIELDS)),
    ),
    "All models": (
        *not_needed(_NATIVE, *(f"{model}.ensemble_scheduling" for model in BESIDE)),
        *not_needed(
            "ranks of one engine are processes; runtime.instance_count for copies of an engine of "
            "one GPU",
            f"{ENGINE}.instance_group",
        ),
        *not_needed(_QUEUE, f"{ENGINE}.dynamic_batching"),
        *not_needed(
            _TENSORS,
            *(f"{model}.{end}" for model in (ENGINE, *BESIDE) for end in ("input", "output")),
        ),
        *not_needed("this server writes it", *(f"{model}.name" for model in (ENGINE, *BESIDE))),
    ),
}
TABLE = RuleTable("a Triton model repository", SECTIONS)


def holds_engine(folder: Path) -> bool:
    """Return True for a repository that contains the engine's model, whatever else it contains."""
    return (folder / ENGINE / CONFIG).is_file()


def is_repository(folder: Path) -> bool:
    """Return True for NVIDIA's models; LMI's layout contains only the engine's."""
    return holds_engine(folder) and any((folder / model / CONFIG).is_file() for model in BESIDE)


def read_repository(folder: Path) -> list[Given]:
    """Read the settings of every model.

    Raises:
        SettingsError: a config.pbtxt cannot be read, or its template is not filled in.
    """
    given: list[Given] = []
    for file in sorted(folder.glob(f"*/{CONFIG}")):
        text = read_text(file)
        if found := _OPEN_FIELD.search(text):
            raise SettingsError(
                f"{file} has {found[1]}, a placeholder of NVIDIA's template; fill it in with "
                "fill_template.py, or write its value."
            )
        given += _settings(file.parent.name, read_config(file))
    return given


def _settings(model: str, config: Any) -> Iterator[Given]:
    for field, value in config.ListFields():
        if field.name == "parameters":
            for name in sorted(value):
                yield _given(model, name, value[name].string_value)
        elif field.name == "model_transaction_policy":
            yield _given(model, "decoupled", str(value.decoupled).lower())
        elif field.name in ("input", "output", "instance_group"):
            yield _given(model, field.name, f"{len(value)} of them")
        elif field.name in ("ensemble_scheduling", "dynamic_batching"):
            yield _given(model, field.name, " ".join(str(value).split()))
        else:
            yield _given(model, field.name, " ".join(str(value).split()))


def _given(model: str, name: str, value: str) -> Given:
    """Return a setting; a quoted placeholder counts as not set."""
    left = _PLACEHOLDER.fullmatch(value.strip())
    spelling = f"{model}.{name}"
    return Given(spelling, spelling, "" if left else value, value)


def convert(given: Sequence[Given], version: str | None) -> ConversionResult:
    """Convert a repository's settings; version None accepts parameters of every release."""
    rules = {**TABLE.rules, **{rule.name: rule for rule in _parameters(version)}}
    for option in given:
        model, _, name = option.name.partition(".")
        if name == "decoupled":
            rules[option.name] = rules["*.decoupled"]
        elif model not in (ENGINE, *BESIDE):
            rules[option.name] = OptionRule(
                name=option.name,
                outcome=Outcome.UNSUPPORTED,
                reason=f"a model `{model}` is not served: text goes in and comes out",
            )
    return apply_rules(given, rules, "engine", title=TABLE.title)
