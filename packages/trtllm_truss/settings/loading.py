"""The only reader of secrets, environment and `model_metadata`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.build import Build, RotaryScaling
from trtllm_truss.settings.model import PLATFORM_KEYS, Serving, Settings
from trtllm_truss.settings.mounts import read_mounts
from trtllm_truss.settings.quantization import METHOD_SECTIONS
from trtllm_truss.validation import broken_rule, did_you_mean, dotted_path

ACCESS_TOKEN_SECRET = "hf_access_token"  # noqa: S105 - the secret's name, not its value
GROUP_KEY_SECRET = "group_key"  # noqa: S105
_PREFIX = "TRUSS_SECRET_"
_VARIABLE = f"{_PREFIX}{ACCESS_TOKEN_SECRET}"
_FILE = Path("/secrets") / ACCESS_TOKEN_SECRET  # read by Truss's server too
_TOKEN = re.compile(r"[!-~]*")

_SECTIONS: dict[str, type[BaseModel]] = {
    **{"": Settings, "serving": Serving, "build": Build, "build.rotary_scaling": RotaryScaling},
    **{f"build.quantization.{method}": section for method, section in METHOD_SECTIONS.items()},
}


@dataclass(frozen=True, slots=True)
class Environment:
    """Secrets and environment variables.

    Attributes:
        hf_access_token: the Hugging Face token, None if not declared, empty if declared without a
            value; excluded from every repr.
        variables: the process environment at start.
        group_key: the key of a group of several hosts, empty if not set; excluded likewise.
    """

    hf_access_token: str | None
    variables: Mapping[str, str]
    group_key: str = ""

    def __repr__(self) -> str:
        return f"Environment(hf_access_token={'set' if self.hf_access_token else None})"


def parse_settings(config: Mapping[str, Any]) -> Settings:
    """Validate the settings of a parsed config.yaml.

    Raises:
        SettingsError: a key is unknown, missing, of the wrong type or out of range.
    """
    metadata = config.get("model_metadata") or {}
    if not isinstance(metadata, Mapping):
        raise SettingsError(
            f"config.yaml: model_metadata is {metadata!r}; it must be a mapping of settings."
        )
    ours = {key: value for key, value in metadata.items() if key not in PLATFORM_KEYS}
    try:
        return Settings.model_validate(ours, context={"mounts": read_mounts(config)})
    except ValidationError as error:
        raise SettingsError(_message(error)) from None


def read_environment(secrets: Mapping[str, str] | None = None) -> Environment:
    """Read secrets and environment variables of this process.

    Args:
        secrets: Truss's secrets mapping, which raises for a declared but empty secret and supports
            neither `in` nor iteration. Without it, as on the command line, the token is the
            variable `TRUSS_SECRET_hf_access_token`.

    Raises:
        SettingsError: the token is malformed.
    """
    token = os.environ.get(_VARIABLE)
    if secrets is not None:
        try:
            token = secrets[ACCESS_TOKEN_SECRET]
        except Exception:  # noqa: BLE001 - Truss's SecretNotFound is importable only on the server
            token = "" if token is not None or _FILE.is_file() else None
    token = token and token.strip()
    if token and not _TOKEN.fullmatch(token):
        raise SettingsError(
            f"the secret {ACCESS_TOKEN_SECRET} contains a space, a line break or another character "
            "that tokens cannot have; set it to the token alone."
        )
    variables = dict(os.environ)
    return Environment(token, variables, group_key=_group_key(secrets))


def _group_key(secrets: Mapping[str, str] | None) -> str:
    """Return the secret from Truss, the environment or Truss's folder, in this order."""
    key = None
    if secrets is not None:
        with suppress(Exception):
            key = secrets[GROUP_KEY_SECRET]
    if not key:
        key = os.environ.get(f"{_PREFIX}{GROUP_KEY_SECRET}")
    if not key:
        with suppress(OSError, UnicodeDecodeError):
            key = _FILE.with_name(GROUP_KEY_SECRET).read_text(encoding="utf-8")
    return (key or "").strip()


def _message(error: ValidationError) -> str:
    problems = [_problem(dict(item)) for item in error.errors(include_url=False)]
    return "config.yaml: " + "; ".join(problems) + "."


def _problem(item: dict[str, Any]) -> str:
    path = dotted_path(("model_metadata", *item["loc"]))
    if item["type"] == "extra_forbidden":
        return f"{path} is not a setting{_suggestion(*item['loc'])}"
    if item["type"] == "missing":
        return f"{path} is missing"
    return broken_rule(item, path)


def _suggestion(*location: str) -> str:
    *parents, key = location
    section = _SECTIONS.get(".".join(parents))
    names = list(section.model_fields) if section else []
    close = did_you_mean(key, names)
    return f" (did you mean {close}?)" if close else f" (known: {', '.join(sorted(names))})"
