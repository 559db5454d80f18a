"""Options of serving.properties and environment variables, by their LMI names.

Precedence: https://docs.djl.ai/master/docs/serving/serving/docs/lmi/deployment_guide/
configurations.html. A property wins over `OPTION_…`, which wins over other variables.
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
"""Variables with special names; of two for one option, the earlier row wins."""

_PREFIXES = ("OPTION_", "SERVING_")
_SECRET = re.compile(r"token$|secret|password|credential|_key$")
_INLINE_COMMENT = re.compile(r"\s#.*$")


@dataclass(frozen=True, slots=True)
class LmiOption:
    """An option as found.

    Attributes:
        name: LMI's name, without `option.`.
        spelling: its name there: `option.dtype`, `OPTION_DTYPE`, `HF_MODEL_ID` …
        value: never empty; excluded from every repr, since it may be a token.
    """

    name: str
    spelling: str
    value: str

    def __repr__(self) -> str:
        return f"LmiOption({self.spelling})"

    @property
    def shown(self) -> str:
        """The value, or "…" for a secret."""
        return "…" if _SECRET.search(self.name.lower()) else self.value


def read_lines(text: str, source: str) -> dict[str, str]:
    """Parse `key=value` lines of serving.properties or of a `docker run --env-file`.

    Cuts off a comment after a value, as the documentation's examples require.

    Raises:
        SettingsError: a line has another form.
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
    return {
        name: value
        for name, value in environment.items()
        if name in _VARIABLES or name.startswith(_PREFIXES)
    }


def collect_options(values: Mapping[str, str]) -> list[LmiOption]:
    """Collect each option once, in the order of first mention; empty values count as not set."""
    found: dict[str, tuple[int, LmiOption]] = {}
    for spelling, value in values.items():
        if not value:
            continue
        rank, name = _meaning(spelling)
        if name not in found or rank < found[name][0]:
            found[name] = (rank, LmiOption(name, spelling, value))
    return [given for _, given in found.values()]


def overridden(values: Mapping[str, str], given: Iterable[LmiOption]) -> list[str]:
    """List the spellings that lose to another one of the same option."""
    used = {option.spelling for option in given}
    return [spelling for spelling, value in values.items() if value and spelling not in used]


def _meaning(spelling: str) -> tuple[int, str]:
    """Return (precedence, option name); 0 wins."""
    if spelling.startswith("option."):
        return 0, spelling.removeprefix("option.")
    if spelling.startswith("OPTION_"):
        return 1, _folded(spelling.removeprefix("OPTION_"))
    if spelling in _VARIABLES:
        return 2 + list(_VARIABLES).index(spelling), _VARIABLES[spelling]
    if spelling.startswith("SERVING_"):
        return 1, _folded(spelling.removeprefix("SERVING_"))
    return 0, spelling


def _folded(name: str) -> str:
    lower = name.lower()
    return "entryPoint" if lower == "entrypoint" else lower
