"""The only reader of secrets, environment and `model_metadata`, and of the group of hosts.

The settings or the platform name the hosts that run one engine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from trtllm_truss.errors import SettingsError
from trtllm_truss.mpi_job import Rank, read_rank
from trtllm_truss.settings.build import METHOD_SECTIONS, Build, RotaryScaling
from trtllm_truss.settings.model import PLATFORM_KEYS, Serving, Settings, read_mounts
from trtllm_truss.settings.runtime import KEYS, SECTION, is_argument
from trtllm_truss.validation import broken_rule, did_you_mean, dotted_path

ACCESS_TOKEN_SECRET = "hf_access_token"  # noqa: S105 - the secret's name, not its value
GROUP_KEY_SECRET = "group_key"  # noqa: S105
HONEYCOMB_SECRET = "HONEYCOMB_API_KEY"  # noqa: S105
API_KEY_SECRET = "server_api_key"  # noqa: S105
_PREFIX = "TRUSS_SECRET_"
_VARIABLE = f"{_PREFIX}{ACCESS_TOKEN_SECRET}"
_FILE = Path("/secrets") / ACCESS_TOKEN_SECRET  # read by Truss's server too
_TOKEN = re.compile(r"[!-~]*")

_SECTIONS: dict[str, type[BaseModel]] = {
    **{"": Settings, "serving": Serving, "build": Build, "build.rotary_scaling": RotaryScaling},
    **{f"build.quantization.{method}": section for method, section in METHOD_SECTIONS.items()},
}
_PLACES = {
    "runtime": KEYS,
    **{name: section.model_fields.keys() for name, section in _SECTIONS.items() if name},
    "": Settings.model_fields.keys(),
}
"""Keys by their section."""


class Secrets(Protocol):
    """Truss's secrets, of which only the lookup of one works."""

    def __getitem__(self, name: str, /) -> str: ...


@dataclass(frozen=True, slots=True)
class Environment:
    """Secrets and environment variables.

    Attributes:
        hf_access_token: the Hugging Face token, None if not declared, empty if declared without a
            value; excluded from every repr.
        variables: the process environment at start.
        group_key: the key of a group of several hosts, empty if not set; excluded likewise.
        honeycomb_api_key: where Truss's server exports spans, likewise.
        api_key: the key that callers must send, empty if not set; excluded likewise.
    """

    hf_access_token: str | None
    variables: Mapping[str, str]
    group_key: str = ""
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
    try:
        return Settings.model_validate(ours, context={"mounts": read_mounts(config)})
    except ValidationError as error:
        raise SettingsError(_message(error)) from None


def read_environment(secrets: Secrets | None = None) -> Environment:
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
    return Environment(
        token,
        variables,
        group_key=_secret(GROUP_KEY_SECRET, secrets),
        honeycomb_api_key=_secret(HONEYCOMB_SECRET, secrets),
        api_key=_secret(API_KEY_SECRET, secrets),
    )


def require_declared_api_key(
    config: Mapping[str, Any], limits: Serving, environment: Environment
) -> None:
    """Check that a declared key has a value: without one the server would be open.

    Raises:
        SettingsError: config.yaml declares the secret, and it has no value, or a malformed one; or
            `serving.metrics_need_key` needs it.
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
    """Secrets as Truss's server reads them: a file in `/secrets`, else a variable.

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
        return f"{path} is missing"
    return broken_rule(item, path)


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


HOSTS_VARIABLE = "TRTLLM_TRUSS_HOSTS"
LWS_LEADER, LWS_SIZE, LWS_INDEX = "LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"
"""Variables of Kubernetes' LeaderWorkerSet, in every container of a group:
https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/."""

_SHORTEST_KEY = 32
_NODES = "config.yaml: model_metadata.nodes"


@dataclass(frozen=True, slots=True)
class Group:
    """Hosts of one engine.

    Attributes:
        size: hosts, the leader included.
        leader: the leader's name or IPv4 address.
        port: the leader's port for members.
        index: this host's place, 0 for the leader; None if the platform does not number them.
        hosts: names or addresses of all hosts; empty if only the leader's is known.
    """

    size: int
    leader: str
    port: int
    index: int | None = None
    hosts: tuple[str, ...] = ()


def resolve_group(settings: Settings, environment: Environment) -> tuple[Settings, Group | None]:
    """Read the group; return settings whose `nodes` is its size, and the group.

    A rank of another launcher's job has no group: the launcher has placed all ranks.

    Raises:
        SettingsError: the group is contradictory, or its hosts could not have the engine.
    """
    rank = read_rank(environment.variables)
    group = None if rank else read_group(settings, environment.variables)
    hosts = group.size if group else rank.hosts if rank else 1
    if rank is not None and settings.nodes is not None and settings.node_count != hosts:
        raise SettingsError(
            f"{_NODES} names {settings.node_count} hosts, but the launcher has placed the "
            f"{rank.size} ranks on {hosts}; remove it: the launcher's hosts count."
        )
    settled = settings.model_copy(update={"nodes": hosts})
    _require_one_builder(settled, rank)
    return settled, group


def known_nodes(settings: Settings, environment: Environment) -> Settings:
    """Return the settings of a start here, or of one elsewhere if nothing names the hosts here.

    Raises:
        SettingsError: as in `resolve_group`.
    """
    if any(environment.variables.get(name) for name in (LWS_LEADER, HOSTS_VARIABLE)):
        return resolve_group(settings, environment)[0]
    _require_one_builder(settings)
    return settings


def _require_one_builder(settings: Settings, rank: Rank | None = None) -> None:
    if settings.engine_repository is not None:
        return
    if rank is not None:
        raise SettingsError(
            f"this process is rank {rank.index} of {rank.size}, and each would build the engine; "
            "publish it with `trtllm-truss publish` and name it in engine_repository."
        )
    if settings.node_count > 1:
        raise SettingsError(
            f"config.yaml: model_metadata.nodes is {settings.node_count}, but a build makes the "
            "engine on one host only; publish it with `trtllm-truss publish` and name it in "
            "engine_repository."
        )


def read_group(settings: Settings, variables: Mapping[str, str]) -> Group | None:
    """Return the group of several hosts; None for a single host.

    `nodes` with names wins; then LeaderWorkerSet's variables and `TRTLLM_TRUSS_HOSTS`, a list with
    commas, give the group.

    Raises:
        SettingsError: the sources contradict each other, or none names the leader.
    """
    nodes, port = settings.nodes, settings.serving.nodes_port
    if isinstance(nodes, list):
        return _of_hosts(nodes, port, "nodes", variables)
    group = None
    if variables.get(LWS_LEADER) and variables.get(LWS_SIZE, "1") != "1":
        size, index = _number(LWS_SIZE, variables), _number(LWS_INDEX, variables, "0")
        group = Group(size, variables[LWS_LEADER], port, index)
    elif names := variables.get(HOSTS_VARIABLE):
        hosts = [name.strip() for name in names.split(",") if name.strip()]
        group = _of_hosts(hosts, port, HOSTS_VARIABLE, variables)
    if nodes is None or (group is None and nodes == 1):
        return group if group is not None and group.size > 1 else None
    if group is None:
        raise SettingsError(
            f"{_NODES} is {nodes}, but nothing names the hosts; list their names there, set "
            f"{HOSTS_VARIABLE}, or deploy as a LeaderWorkerSet."
        )
    if group.size != nodes:
        raise SettingsError(
            f"{_NODES} is {nodes}, but the platform's group has {group.size} hosts; set it to "
            f"{group.size}."
        )
    return group


def require_key(key: str) -> bytes:
    """Return the group's key.

    Raises:
        SettingsError: it is missing or too short to be random.
    """
    if len(key) < _SHORTEST_KEY:
        state = f"has {len(key)} characters" if key else "is not set"
        raise SettingsError(
            f"the secret {GROUP_KEY_SECRET} {state}; several hosts need the same random one of at "
            f"least {_SHORTEST_KEY} characters on each: openssl rand -hex 32."
        )
    return key.encode()


def _of_hosts(hosts: list[str], port: int, source: str, variables: Mapping[str, str]) -> Group:
    if len(set(hosts)) < len(hosts):
        raise SettingsError(f"{source} names a host twice; every host has one place in the group.")
    index = _number(LWS_INDEX, variables) if variables.get(LWS_INDEX) else None
    return Group(len(hosts), hosts[0], port, index, tuple(hosts))


def _number(name: str, variables: Mapping[str, str], default: str = "") -> int:
    text = variables.get(name, default)
    if not text.isdigit():
        raise SettingsError(f"the environment variable {name} is {text!r}; it must be a number.")
    return int(text)
