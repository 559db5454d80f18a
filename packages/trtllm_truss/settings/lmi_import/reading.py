"""serving.properties and environment variables become options by their LMI names.

How LMI reads them: https://docs.djl.ai/master/docs/serving/serving/docs/lmi/deployment_guide/
configurations.html. A property wins over `OPTION_…`, and this one over every other variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trtllm_truss.errors import SettingsError

_VARIABLES = {
    "HF_MODEL_ID": "model_id",
    "HF_REVISION": "revision",
    "HF_TOKEN": "hf_token",
    "HF_TASK": "task",
    "HF_MODEL_TRUST_REMOTE_CODE": "trust_remote_code",
    "HF_MODEL_QUANTIZE": "quantize",
    "TENSOR_PARALLEL_DEGREE": "tensor_parallel_degree",
    "SM_NUM_GPUS": "tensor_parallel_degree",
    "MAX_BATCH_SIZE": "max_rolling_batch_size",
    "MAX_BATCH_PREFILL_TOKENS": "max_rolling_batch_prefill_tokens",
    "MAX_CONCURRENT_REQUESTS": "job_queue_size",
    "CUDA_MEMORY_FRACTION": "kv_cache_free_gpu_mem_fraction",
    "MODEL_LOADING_TIMEOUT": "model_loading_timeout",
    "PREDICT_TIMEOUT": "predict_timeout",
}
"""Variables with names of their own; where two mean the same, the first one given wins."""

_PREFIXES = ("OPTION_", "SERVING_")
_SECRET = re.compile(r"token$|secret|password|credential|_key$")
_INLINE_COMMENT = re.compile(r"\s#.*$")


@dataclass(frozen=True, slots=True)
class Given:
    """One option as it was found.

    Attributes:
        name: LMI's name, without `option.`.
        written: how it was written: `option.dtype`, `OPTION_DTYPE`, `HF_MODEL_ID` …
        value: never empty; kept out of every repr, for it may be a token.
    """

    name: str
    written: str
    value: str

    def __repr__(self) -> str:
        return f"Given({self.written})"

    @property
    def shown(self) -> str:
        """The value as it may be printed."""
        return "…" if _SECRET.search(self.name.lower()) else self.value


def read_lines(text: str, source: str) -> dict[str, str]:
    """`key=value` lines: serving.properties, or variables as `docker run --env-file` takes them.

    A comment after a value is cut off, as the documentation's own examples need it.

    Raises:
        SettingsError: a line is none.
    """
    values = {}
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.strip().removeprefix("export ")
        if not content or content.startswith(("#", "!")):
            continue
        key, equals, value = content.partition("=")
        if not equals or not key.strip():
            raise SettingsError(
                f"{source}, line {number} is not key=value; correct or remove the line."
            )
        values[key.strip()] = _INLINE_COMMENT.sub("", value).strip().strip("\"'")
    return values


def lmi_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those variables of an environment that LMI would read."""
    return {
        name: value
        for name, value in environment.items()
        if name in _VARIABLES or name.startswith(_PREFIXES)
    }


def given_options(values: Mapping[str, str]) -> list[Given]:
    """Each option once, in the order of their first mention; empty values are not given."""
    found: dict[str, tuple[int, Given]] = {}
    for written, value in values.items():
        if not value:
            continue
        rank, name = _meaning(written)
        if name not in found or rank < found[name][0]:
            found[name] = (rank, Given(name, written, value))
    return [given for _, given in found.values()]


def overridden(values: Mapping[str, str], given: Iterable[Given]) -> list[str]:
    """What was written, but loses to another way of writing the same option."""
    used = {option.written for option in given}
    return [written for written, value in values.items() if value and written not in used]


def _meaning(written: str) -> tuple[int, str]:
    """How early a way of writing wins (0 first), and the option that it means."""
    if written.startswith("option."):
        return 0, written.removeprefix("option.")
    if written.startswith("OPTION_"):
        return 1, _folded(written.removeprefix("OPTION_"))
    if written in _VARIABLES:
        return 2 + list(_VARIABLES).index(written), _VARIABLES[written]
    if written.startswith("SERVING_"):
        return 1, _folded(written.removeprefix("SERVING_"))
    return 0, written


def _folded(name: str) -> str:
    lower = name.lower()
    return "entryPoint" if lower == "entrypoint" else lower
