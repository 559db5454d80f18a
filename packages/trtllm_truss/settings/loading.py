"""Read secrets, environment and `model_metadata`; no other module does."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from trtllm_truss.errors import SettingsError
from trtllm_truss.processes.mpi_job import Rank, read_rank
from trtllm_truss.settings.build import METHOD_SECTIONS, Build, RotaryScaling
from trtllm_truss.settings.model import PLATFORM_KEYS, Serving, Settings, read_mounts
from trtllm_truss.settings.runtime import KEYS, SECTION, is_argument
from trtllm_truss.validation import broken_rule, did_you_mean, dotted_path

ACCESS_TOKEN_SECRET = "hf_access_token"  # noqa: S105 - the secret's name, not its value
HONEYCOMB_SECRET = "HONEYCOMB_API_KEY"  # noqa: S105
API_KEY_SECRET = "server_api_key"  # noqa: S105
_PREFIX = "TRUSS_SECRET_"
_VARIABLE = f"{_PREFIX}{ACCESS_TOKEN_SECRET}"
_FILE = Path("/secrets") / ACCESS_TOKEN_SECRET  # Truss's server reads it too
_TOKEN = re.compile(r"[!-~]*")

_RUNTIME = "runtime"
_NUMBERS = ("int_type", "float_type")
_SECTIONS: dict[str, type[BaseModel]] = {
    **{"": Settings, "serving": Serving, "build": Build, "build.rotary_scaling": RotaryScaling},
    **{f"build.quantization.{method}": section for method, section in METHOD_SECTIONS.items()},
}
_PLACES = {
    _RUNTIME: KEYS,
    **{name: section.model_fields.keys() for name, section in _SECTIONS.items() if name},
    "": Settings.model_fields.keys(),
}
"""Keys by section."""


class Secrets(Protocol):
    """Truss's secrets mapping, of which only the lookup works."""

    def __getitem__(self, name: str, /) -> str: ...


@dataclass(frozen=True, slots=True)
class Environment:
    """Secrets and environment variables.

    Attributes:
        hf_access_token: the Hugging Face token; None if not declared, empty if declared without a
            value; excluded from every repr.
        variables: the process environment at start.
        honeycomb_api_key: key for the exporter of spans in Truss's server, empty if not set; also
            excluded.
        api_key: the key that callers must send, empty if not set; also excluded.
    """

    hf_access_token: str | None
    variables: Mapping[str, str]
    honeycomb_api_key: str = ""
    api_key: str = ""

    def __repr__(self) -> str:
        return f"Environment(hf_access_token={'set' if self.hf_access_token else None})"


_KEYS_LIKE_OURS = ("model_name", "model_cache", "model_class_name", "model_type", "model_framework")
"""Truss's keys that are spelled like `model_metadata`."""


def parse_settings(config: Mapping[str, Any]) -> Settings:
    """Validate the settings of a parsed config.yaml.

    Raises:
        SettingsError: a key is unknown, missing, of the wrong type or out of range.
    """
    metadata = config.get("model_metadata") or {}
    others = [str(key) for key in config if key not in _KEYS_LIKE_OURS]
    if "model_metadata" not in config and (typed := did_you_mean("model_metadata", others)):
        raise SettingsError(f"config.yaml: {typed} is not a key; did you mean model_metadata?")
    if "model_metadata" not in config:
        raise SettingsError(
            "config.yaml has no model_metadata, so it is not a Truss of trtllm-truss; name another "
            "folder with --truss, or write a new one: trtllm-truss init ENGINE."
        )
    if not isinstance(metadata, Mapping):
        raise SettingsError(
            f"config.yaml: model_metadata is {metadata!r}; it must be a mapping of settings."
        )
    ours = {key: value for key, value in metadata.items() if key not in PLATFORM_KEYS}
    _check_places(ours)
    try:
        return Settings.model_validate(ours, context={"mounts": read_mounts(config)})
    except ValidationError as error:
        raise SettingsError(_message(error)) from None


def read_environment(secrets: Secrets | None = None) -> Environment:
    """Read secrets and environment variables of this process.

    Args:
        secrets: Truss's secrets mapping, which raises for a declared but empty secret and supports
            neither `in` nor iteration. If omitted, as on the command line, the token is read from
            the variable `TRUSS_SECRET_hf_access_token`.

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
    return Environment(
        token,
        variables,
        honeycomb_api_key=_secret(HONEYCOMB_SECRET, secrets),
        api_key=_secret(API_KEY_SECRET, secrets),
    )


def require_declared_api_key(
    config: Mapping[str, Any], limits: Serving, environment: Environment
) -> None:
    """Check that a declared key has a value; otherwise the server would be open.

    Raises:
        SettingsError: config.yaml declares the secret, but it has no value or a malformed one; or
            `serving.metrics_need_key` requires it.
    """
    key = environment.api_key
    if not key and limits.metrics_need_key:
        raise SettingsError(
            f"model_metadata.serving.metrics_need_key is true, but the secret {API_KEY_SECRET} has "
            "no value; declare it in secrets of config.yaml and set it, or remove the setting."
        )
    if not key and API_KEY_SECRET in (config.get("secrets") or {}):
        raise SettingsError(
            f"config.yaml declares the secret {API_KEY_SECRET}, which has no value; set it, or "
            "remove the declaration to serve without a key."
        )
    if not _TOKEN.fullmatch(key):
        raise SettingsError(
            f"the secret {API_KEY_SECRET} contains a space, a line break or another character "
            "that a header cannot have; set it to the key alone."
        )


class MountedSecrets:
    """Secrets as Truss's server reads them: a file in `/secrets`, or a variable.

    Source: truss/templates/shared/secrets_resolver.py, 0.18.35.

    Args:
        config: the parsed config.yaml, which declares their names.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._declared: Mapping[str, str | None] = config.get("secrets") or {}

    def __getitem__(self, name: str) -> str:
        """Return the value of a declared secret.

        Raises:
            KeyError: it is not declared, or has no value.
        """
        value = os.environ.get(f"{_PREFIX}{name}", self._declared[name])
        with suppress(FileNotFoundError):
            value = _FILE.with_name(name).read_text(encoding="utf-8")
        if not value:
            raise KeyError(name)
        return value


def _secret(name: str, secrets: Secrets | None) -> str:
    """Return a secret from Truss, the environment or Truss's folder, in this order."""
    value = None
    if secrets is not None:
        with suppress(Exception):
            value = secrets[name]
    if not value:
        value = os.environ.get(f"{_PREFIX}{name}")
    if not value:
        with suppress(OSError, UnicodeDecodeError):
            value = _FILE.with_name(name).read_text(encoding="utf-8")
    return (value or "").strip()


def _message(error: ValidationError) -> str:
    problems = [_problem(dict(item)) for item in error.errors(include_url=False)]
    return "config.yaml: " + "; ".join(problems) + "."


def _problem(item: dict[str, Any]) -> str:
    path = dotted_path(("model_metadata", *item["loc"]))
    if item["type"] == "extra_forbidden":
        return f"{path} is not a setting{_suggestion(*item['loc'])}"
    if item["type"] == "missing":
        return f"{path} is missing; add it"
    value = item["input"]
    if item["type"] == "string_type" and isinstance(value, (bool, int, float, date)):
        return f"{path} is {value}, which YAML does not read as a text; put it in quotes"
    if item["type"] in _NUMBERS and isinstance(value, str) and value.strip("+-").isdigit():
        return f"{broken_rule(item, path)}, without quotes"
    return broken_rule(item, path)


def _check_places(metadata: Mapping[str, Any]) -> None:
    """Refuse keys of other sections in `runtime`, which contains the engine's parameters."""
    runtime = metadata.get(_RUNTIME)
    for name in runtime if isinstance(runtime, Mapping) else ():
        if name not in KEYS and (name in _PLACES[""] or name in _PLACES["serving"]):
            path = f"model_metadata.{_RUNTIME}.{name}"
            raise SettingsError(
                f"config.yaml: {path} is not a setting{_suggestion(_RUNTIME, name)}."
            )


def _suggestion(*location: str) -> str:
    *parents, key = location
    section = _SECTIONS.get(".".join(parents))
    names = list(section.model_fields) if section else []
    places = [place for place, known in _PLACES.items() if key in known]
    if is_argument(key) and "runtime" not in places:
        places.append(f"runtime.{SECTION}")
    if places:
        known = [f"model_metadata.{place}".rstrip(".") for place in places]
        return f" (it belongs under {' or '.join(known)})"
    close = did_you_mean(key, names)
    return f" (did you mean {close}?)" if close else f" (known: {', '.join(sorted(names))})"


_NODES = "config.yaml: model_metadata.nodes"


def resolve_hosts(settings: Settings, environment: Environment) -> Settings:
    """Return the settings with `nodes` set to the number of hosts of this start.

    Raises:
        SettingsError: the launcher has placed the ranks on another number of hosts, several hosts
            have no launcher, or each rank would build the engine.
    """
    rank = read_rank(environment.variables)
    if rank is None and settings.node_count > 1:
        raise SettingsError(
            f"{_NODES} is {settings.node_count}, but no launcher has started this process; start "
            "one process for each GPU by `srun --mpi=pmix` or by `mpirun` (docs/several-hosts.md)."
        )
    hosts = rank.hosts if rank else 1
    if rank is not None and settings.nodes not in (None, hosts):
        raise SettingsError(
            f"{_NODES} is {settings.nodes}, but the launcher has placed the {rank.size} ranks on "
            f"{hosts}; remove it: the launcher's hosts count."
        )
    require_one_builder(settings, rank)
    return settings.model_copy(update={"nodes": hosts})


def require_one_builder(settings: Settings, rank: Rank | None = None) -> None:
    """Refuse to build the engine on several hosts or ranks.

    Raises:
        SettingsError: each host or rank would build it.
    """
    if settings.engine_repository is not None:
        return
    if rank is not None:
        raise SettingsError(
            f"this process is rank {rank.index} of {rank.size}, and each would build the engine; "
            "publish it with `trtllm-truss publish` and name it in engine_repository."
        )
    if settings.node_count > 1:
        raise SettingsError(
            f"{_NODES} is {settings.node_count}, but a build makes the engine on one host only; "
            "publish it with `trtllm-truss publish` and name it in engine_repository."
        )
