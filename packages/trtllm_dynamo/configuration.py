"""Settings and addresses of a Dynamo worker."""

from __future__ import annotations

from collections.abc import Mapping

from trtllm_truss.errors import SettingsError
from trtllm_truss.local_requests import LOOPBACK, is_loopback
from trtllm_truss.protocols.base import Defaults
from trtllm_truss.settings.loading import API_KEY_SECRET
from trtllm_truss.settings.model import Settings
from trtllm_truss.validation import shown

_HOST_VARIABLES = ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST")
"""Addresses on which a worker listens; by default the machine's network address.

Sources in ai-dynamo/dynamo: `get_tcp_rpc_host_from_env` of lib/runtime/src/utils/ip_resolver.rs at
cbe9078b, and lib/runtime/src/config/environment_names.rs.
"""

_ON_ONE_HOST = ("file", "mem")
"""Values of `DYN_DISCOVERY_BACKEND` with which all processes are on one host."""


def local_addresses(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables that make a worker on a single host listen on loopback.

    Dynamo requires no key. With other discovery backends the frontend may be on another host and
    must reach the worker; then the result is empty.
    """
    if variables.get("DYN_DISCOVERY_BACKEND") not in _ON_ONE_HOST:
        return {}
    return {name: LOOPBACK for name in _HOST_VARIABLES if not variables.get(name)}


def is_on_the_network(variables: Mapping[str, str]) -> bool:
    """Return True if other hosts can send requests to a worker, bypassing the frontend's key."""
    return not is_loopback(variables.get(_HOST_VARIABLES[0], ""))


def check_configuration(settings: Settings, defaults: Defaults, *, has_key: bool) -> None:
    """Refuse settings about text, which a worker never sees, and about HTTP.

    Args:
        defaults: values of omitted fields.
        has_key: the secret `server_api_key` is declared or set.

    Raises:
        SettingsError: such a setting is set.
    """
    if has_key:
        raise SettingsError(
            f"the secret {API_KEY_SECRET} is declared or set, but a Dynamo worker does not "
            "check keys: anyone who reaches its port can generate. Remove the secret, and put "
            "a key in front of Dynamo's frontend."
        )
    if words := defaults.get("stop_words"):
        raise SettingsError(
            f"config.yaml: model_metadata.generation.stop_words is {shown(words)}; Dynamo's "
            "frontend handles stop words, and has no defaults. Remove it, or set "
            "stop_token_ids."
        )
    if (limit := settings.serving.reasoning_limit_tokens) is not None:
        raise SettingsError(
            f"config.yaml: model_metadata.serving.reasoning_limit_tokens is {limit}; a Dynamo "
            "worker does not see reasoning. Remove it."
        )
