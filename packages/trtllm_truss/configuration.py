"""Read and validate config.yaml as a whole, for the server and all commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml.composer import ComposerError
from yaml.reader import ReaderError

from trtllm_truss import yaml_files
from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.loading import parse_settings
from trtllm_truss.settings.model import MOUNT_EXAMPLE, Settings, read_mounts
from trtllm_truss.validation import shown

_WITH_FOLDERS = {
    *("engine_repository", "tokenizer_repository", "lora_adapters"),
    *("build", "runtime"),
}
"""Keys of `model_metadata` whose values can be or contain local folders."""

_TYPES: Mapping[type, tuple[str, ...]] = {
    dict: (
        *("base_image", "bdn", "docker_server", "environment_variables"),
        *("resources", "runtime", "secrets"),
    ),
    list: ("external_package_dirs", "weights"),
    str: ("bundled_packages_dir", "data_dir", "model_module_dir"),
}
"""Truss's keys that are read before or without Truss's own check, by type.

Source: truss/base/truss_config.py, 0.18.35, which fails on some of them with a traceback.
"""
_MAY_BE_NULL = ("base_image", "docker_server")
_NOUNS: Mapping[type, str] = {dict: "a mapping", list: "a list", str: "a string"}
_MERGE = "tag:yaml.org,2002:merge"
_YAML_REMEDIES: Mapping[str, str] = {
    "cannot start any token": "indent with spaces, and put a value that begins so in quotes",
    "undefined alias": "put a value that begins with * in quotes",
    "mapping values are not allowed": "put a value with a colon in quotes, or correct the indent",
    "another document": "keep one document, without a line ---",
    "constructor for the tag": "remove the tag, or put a value that begins with ! in quotes",
    "unhashable key": "write a text as the key",
    "contains itself": "write its values out",
    "written out": "write fewer",
    "levels deep": "nest less",
    "two values": "",
}
"""The remedy by a part of PyYAML's or our sentence; empty if the sentence contains it."""

CONFIDENTIAL = ("secrets", "environment_variables")
"""Keys whose values no message shows."""


class Configuration(NamedTuple):
    """A valid config.yaml.

    Attributes:
        settings: `model_metadata`.
        request_defaults: `model_metadata.generation`, by predict field.
    """

    settings: Settings
    request_defaults: dict[str, Any]


def load_configuration(
    config: Mapping[str, Any], tensorrt_llm_version: str | None = None
) -> Configuration:
    """Validate a parsed config.yaml.

    Args:
        tensorrt_llm_version: the version that must support the keys of `runtime`; None uses the
            installed one, or the version of config.yaml's image. If none is known, the keys of all
            versions are accepted.

    Raises:
        SettingsError: a key is unknown, missing, of the wrong type, out of range or of another
            version.
    """
    # `serve` of the workbench reads config.yaml without them
    from trtllm_truss.engines.host import HostInfo
    from trtllm_truss.engines.kinds import check_settings
    from trtllm_truss.machine.runtime import find_runtime

    settings = parse_settings(config)
    defaults: dict[str, Any] = {}
    if settings.generation:
        from trtllm_truss.protocols.predict import parse_defaults  # imports the protocols

        defaults = parse_defaults(settings.generation)
    here = HostInfo(runtime_version=find_runtime().installed_version)
    version = tensorrt_llm_version or HostInfo.from_config(config, here).known_version
    check_settings(settings, version)
    return Configuration(settings, defaults)


class _Loader(yaml_files.Loader):
    """Refuses duplicate keys, which have no meaning in YAML; PyYAML keeps the last value.

    Source: YAML 1.2.2, 3.2.1.1: the keys of a mapping are unique.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if (key.tag, key.value) in keys:
                    problem = f"the key {shown(key.value)} has two values; keep one"
                    raise ComposerError(None, None, problem, key.start_mark)
                keys.add((key.tag, key.value))
        return node


def read_config(truss: Path, config: Path | None) -> dict[str, Any]:
    """Read `config`, by default the Truss's config.yaml; relative folders in it become absolute.

    Raises:
        SettingsError: the file does not exist, is not a YAML mapping, or one of Truss's keys has a
            wrong type.
    """
    file = config or truss / "config.yaml"
    try:
        content = yaml_files.load(file.read_text(encoding="utf-8"), _Loader)
    except NotADirectoryError:
        raise SettingsError(
            f"--truss {truss} is a file; name its folder, or the file with --config."
        ) from None
    except FileNotFoundError:
        raise SettingsError(
            f"{file} does not exist; "
            + (
                "correct --config."
                if config
                else "name the Truss's folder with --truss, or write one: trtllm-truss init ENGINE."
            )
        ) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "unknown"
        problem = f"{error.problem} (line {line}){_yaml_remedy(str(error.problem))}"
        raise SettingsError(f"{file} is not valid YAML: {problem}.") from None
    except ReaderError as error:
        raise SettingsError(
            f"{file} contains the character U+{error.character:04X} at {error.position}, which "
            "YAML does not allow; remove it."
        ) from None
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{file} is not UTF-8 (byte {error.object[error.start]:#x} at {error.start}); save it "
            "in that encoding."
        ) from None
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(f"{file} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{file} is not a settings file; it must map keys to values.")
    _check_types(content)
    _check_mounts(content)
    _anchor_folders(content)
    return content


def _check_types(content: Mapping[str, Any]) -> None:
    for kind, names in _TYPES.items():
        for name in names:
            value = content.get(name, kind())
            if isinstance(value, kind) or (value is None and name in _MAY_BE_NULL):
                continue
            subject = name if name in CONFIDENTIAL else f"{name} is {shown(value)}; it"
            raise SettingsError(f"config.yaml: {subject} must be {_NOUNS[kind]}.")


def _yaml_remedy(problem: str) -> str:
    found = (remedy for part, remedy in _YAML_REMEDIES.items() if part in problem)
    remedy = next(found, "correct the indent and the quotes around it")
    return remedy and f"; {remedy}"


def _check_mounts(content: Mapping[str, Any]) -> None:
    for mount in read_mounts(content):
        if not mount.place.parts[1:]:
            raise SettingsError(
                f"config.yaml: the mount_location {mount.place} of {mount.source} in weights would "
                f"hide the whole image; choose a folder of its own, such as {MOUNT_EXAMPLE}."
            )


def _anchor_folders(settings: dict[str, Any]) -> None:
    """Make relative folders absolute: the server runs in another folder, and hosts compare them."""
    metadata = settings.get("model_metadata")
    if isinstance(metadata, dict):
        for name in _WITH_FOLDERS & metadata.keys():
            metadata[name] = _anchored(metadata[name])


def _anchored(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _anchored(item) for name, item in value.items()}
    if isinstance(value, str) and value.startswith(("./", "../")):
        return str(Path(value).resolve())
    return value
