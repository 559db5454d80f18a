"""The group of hosts that run one engine, from the settings or the platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.loading import GROUP_KEY_SECRET, Environment
from trtllm_truss.settings.model import Settings

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


def settle_nodes(settings: Settings, environment: Environment) -> tuple[Settings, Group | None]:
    """Read the group; return settings whose `nodes` is its size, and the group.

    Raises:
        SettingsError: the group is contradictory, or its hosts could not have the engine.
    """
    group = read_group(settings, environment.variables)
    settled = settings.model_copy(update={"nodes": group.size if group else 1})
    _require_one_builder(settled)
    return settled, group


def known_nodes(settings: Settings, environment: Environment) -> Settings:
    """Return the settings of a start here, or of one elsewhere if nothing names the hosts here.

    Raises:
        SettingsError: as in `settle_nodes`.
    """
    if any(environment.variables.get(name) for name in (LWS_LEADER, HOSTS_VARIABLE)):
        return settle_nodes(settings, environment)[0]
    _require_one_builder(settings)
    return settings


def _require_one_builder(settings: Settings) -> None:
    if settings.node_count > 1 and settings.engine_repository is None:
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
