"""config.yaml as a whole, validated in one place for the server and every command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from trtllm_truss.engines.compatibility.host import HostInfo
from trtllm_truss.machine.runtime import find_runtime
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.settings.model import Settings


class Configuration(NamedTuple):
    """A valid config.yaml.

    Attributes:
        settings: `model_metadata`.
        request_defaults: `model_metadata.generation`, by field of the predict body.
    """

    settings: Settings
    request_defaults: dict[str, Any]


def load_configuration(
    config: Mapping[str, Any], tensorrt_llm_version: str | None = None
) -> Configuration:
    """Validate a parsed config.yaml.

    Args:
        config: the parsed file.
        tensorrt_llm_version: the version that knows the keys of `runtime`; None is the installed
            one, or else that of config.yaml's image. Keys of all versions pass if none is known.

    Raises:
        SettingsError: a key is unknown, missing, of the wrong type, out of range or of another
            version.
    """
    settings = parse_settings(config)
    defaults: dict[str, Any] = {}
    if settings.generation:
        from trtllm_truss.protocols.predict.body import parse_defaults  # imports the protocols

        defaults = parse_defaults(settings.generation)
    here = HostInfo(runtime_version=find_runtime().installed_version)
    version = tensorrt_llm_version or HostInfo.from_config(config, here).known_version
    if version is not None:
        settings.runtime.check_version(version)
    return Configuration(settings, defaults)
