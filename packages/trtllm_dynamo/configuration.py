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
"""Addresses on which a worker listens; by default the one that the machine has on its network.

Sources in ai-dynamo/dynamo: `get_tcp_rpc_host_from_env` of lib/runtime/src/utils/ip_resolver.rs at
cbe9078b, and lib/runtime/src/config/environment_names.rs.
"""

_ON_ONE_HOST = ("file", "mem")
"""Values of `DYN_DISCOVERY_BACKEND` with which all processes share a host."""


def local_addresses(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with which a worker of a single host listens on loopback.

    Dynamo asks for no key. With another discovery the frontend may be on another host, which must
    reach the worker; then there are none.
    """
    if variables.get("DYN_DISCOVERY_BACKEND") not in _ON_ONE_HOST:
        return {}
    return {name: LOOPBACK for name in _HOST_VARIABLES if not variables.get(name)}


def is_on_the_network(variables: Mapping[str, str]) -> bool:
    """Return whether other hosts can send requests to a worker, past any key of the frontend."""
    return not is_loopback(variables.get(_HOST_VARIABLES[0], ""))


def check_configuration(settings: Settings, defaults: Defaults, *, has_key: bool) -> None:
    """Refuse settings about text, of which a worker sees none, and about HTTP.

    Args:
        defaults: values of omitted fields.
        has_key: the secret `server_api_key` is declared or set.

    Raises:
        SettingsError: one is set.
    """
    if has_key:
        raise SettingsError(
            f"the secret {API_KEY_SECRET} is declared or set, but a worker of Dynamo asks nobody "
            "for a key: whoever reaches its port can generate. Remove the secret, and put a key in "
            "front of Dynamo's frontend."
        )
    if words := defaults.get("stop_words"):
        raise SettingsError(
            f"config.yaml: model_metadata.generation.stop_words is {shown(words)}; stop words are "
            "the frontend's, which has no defaults. Remove it, or set stop_token_ids."
        )
    if (limit := settings.serving.reasoning_limit_tokens) is not None:
        raise SettingsError(
            f"config.yaml: model_metadata.serving.reasoning_limit_tokens is {limit}; a worker of "
            "Dynamo sees no reasoning. Remove it."
        )
