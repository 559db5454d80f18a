"""Read options from other servers' files, folders and command lines, and determine their server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError

from trtllm_truss import yaml_files
from trtllm_truss.errors import SettingsError
from trtllm_workbench.importers import baseten, lmi, triton, trtllm_serve
from trtllm_workbench.importers.command_lines import DOCKER, Command, command_options, find_command
from trtllm_workbench.importers.files import MAX_BYTES, read_text
from trtllm_workbench.importers.rules import (
    ConversionResult,
    Given,
    OptionRule,
    RuleTable,
    apply_rules,
    find_rule,
)

_YAML = (".yaml", ".yml", ".json")
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Importer:
    """One kind of source.

    Attributes:
        table: its options.
        convert: converts them, for an image with a TensorRT-LLM version.
        files_win: options of its files override those of its command line.
        file_options: command-line options that name such a file.
    """

    table: RuleTable
    convert: Callable[[Sequence[Given], str | None], ConversionResult]
    files_win: bool = False
    file_options: tuple[str, ...] = ()


IMPORTERS: Mapping[str, Importer] = {
    "lmi": Importer(lmi.TABLE, lambda given, _version: lmi.convert_options(given, None)),
    "baseten": Importer(baseten.TABLE, baseten.convert),
    "triton": Importer(triton.TABLE, triton.convert),
    "trtllm-serve": Importer(
        trtllm_serve.TABLE,
        trtllm_serve.convert,
        files_win=True,
        file_options=("extra_llm_api_options", "config"),
    ),
}
"""The importers by the names for `--kind`."""


@dataclass(slots=True)
class _Parts:
    """The contents of the sources, before their kind is known."""

    commands: list[Command] = field(default_factory=list)
    mappings: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found:
    """The options in the sources.

    Attributes:
        kind: a key of `IMPORTERS`.
        given: each option once.
        ignored: spellings overridden by another one of the same option.
        origin: description of the sources, without secrets.
    """

    kind: str
    given: list[Given]
    ignored: list[str]
    origin: str

    def convert(self, version: str | None) -> ConversionResult:
        """Convert for an image with a version; None accepts options of every release.

        Raises:
            SettingsError: an option has an invalid value.
        """
        docker = [each for each in self.given if each.name.startswith(("docker ", "launcher"))]
        own = [each for each in self.given if each not in docker]
        result = IMPORTERS[self.kind].convert(own, version)
        around = apply_rules(docker, DOCKER, result.kind, title="`docker run`")
        return replace(result, rows=(*result.rows, *around.rows))


def is_source(name: str) -> bool:
    """Return True for a command line, or for a folder or file of settings that are not LMI's."""
    path = Path(name).expanduser()
    if _exists(path):
        if path.is_dir():
            return triton.is_repository(path)
        if path.suffix == ".json" or path.stat().st_size > MAX_BYTES:  # an engine's file
            return False
        try:
            parts = _read([name])
        except SettingsError:
            return False
        return bool(parts.commands) or _kind(parts, name) not in ("", "lmi")
    return find_command(name, "SOURCE") is not None if " " in name else False


def read_sources(names: Sequence[str], kind: str | None = None) -> Found:
    """Read sources, all of the same kind.

    Args:
        names: files, folders or command lines.
        kind: a key of `IMPORTERS`; None determines it.

    Raises:
        SettingsError: a source cannot be read, is of no kind or of several, or is ambiguous.
    """
    parts = _read(names)
    origin = ", ".join(source_label(name) for name in names)
    if not (parts.commands or parts.mappings or parts.lines or parts.folders):
        raise SettingsError(f"{origin} has no options to import; name a source with some.")
    chosen = kind or _kind(parts, origin)
    if not chosen and any("model_metadata" in content for content in parts.mappings.values()):
        raise SettingsError(
            f"{origin} is the config.yaml of a Truss without trt_llm, so there is nothing to "
            "convert; check it with `trtllm-truss check --config`."
        )
    if not chosen:
        raise SettingsError(
            f"{origin} is of no kind that its options tell; name it with --kind, one of "
            f"{', '.join(IMPORTERS)}."
        )
    importer = IMPORTERS[chosen]
    rules = {**DOCKER, **importer.table.rules}
    lines = _of_lines(parts.lines, chosen)
    own = [option for command in parts.commands for option in command_options(command, rules)]
    for content in _named_files(own, importer, bool(parts.mappings), parts.commands):
        parts.mappings[str(len(parts.mappings))] = content
    filed = [
        option
        for content in parts.mappings.values()
        for option in _flattened(content, rules, by_name=chosen != "baseten")
    ]
    folders = [option for folder in parts.folders for option in triton.read_repository(folder)]
    ordered = [*lines, *own, *filed] if importer.files_win else [*lines, *filed, *own]
    given, ignored = _once([*folders, *ordered], rules)
    return Found(chosen, given, ignored, origin)


def source_label(name: str) -> str:
    """Return a description of a source.

    A command line is not shown, since it may contain secrets.
    """
    if " " not in name or _exists(Path(name).expanduser()):
        return name
    command = find_command(name, "SOURCE")
    return f"a command of {IMPORTERS[command.kind].table.title}" if command else name[:_SHOWN]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a command line can be too long for a name, or contain NUL
        return False


def _read(names: Sequence[str]) -> _Parts:
    parts = _Parts()
    for name in names:
        path = Path(name).expanduser()
        if not _exists(path):
            command = find_command(name, "SOURCE") if " " in name else None
            if command is None:
                raise SettingsError(
                    f"SOURCE is {name[:_SHOWN]!r}, which is no file, no folder and no command of "
                    "trtllm-serve; "
                    + ("quote the whole command." if len(names) > 1 else "correct it.")
                )
            parts.commands.append(command)
        elif path.is_dir():
            if not triton.holds_engine(path):
                raise SettingsError(
                    f"{name} holds no model tensorrt_llm (tensorrt_llm/config.pbtxt); name the "
                    "folder that does."
                )
            parts.folders.append(path)
        else:
            _read_file(path, parts)
    if len(parts.commands) > 1:
        raise SettingsError("the sources start several servers; name one of them.")
    return parts


def _read_file(path: Path, parts: _Parts) -> None:
    text = read_text(path)
    if path.name.lower().endswith(_YAML):
        parts.mappings[str(path)] = parse_mapping(text, str(path))
    elif command := find_command(text, str(path)):
        parts.commands.append(command)
    else:
        parts.lines |= read_lines(text, str(path))


def parse_mapping(text: str, source: str) -> dict[str, Any]:
    """Parse YAML or JSON.

    Raises:
        SettingsError: it is not a mapping.
    """
    try:
        content = yaml_files.load(text)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f"line {mark.line + 1}" if mark else "unknown line"
        why = f"{line}: {problem}" if isinstance(error, ComposerError) else line
        raise SettingsError(f"{source} is not valid YAML ({why}); correct it.") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SettingsError(f"{source} is not a mapping of options; name another file.")
    return content


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
                f"{source}, line {number} is not key=value, as in serving.properties and "
                "`docker run --env-file`; correct the line, or name another file."
            )
        values[key.strip()] = lmi.INLINE_COMMENT.sub("", value).strip().strip("\"'")
    return values


def _kind(parts: _Parts, origin: str) -> str:
    """Return the one kind of all sources; empty if nothing reveals it.

    Raises:
        SettingsError: the sources are of several kinds.
    """
    kinds = {command.kind for command in parts.commands}
    kinds |= {"triton"} if parts.folders else set()
    for content in parts.mappings.values():
        if "trt_llm" in content:
            kinds.add("baseten")
        elif not kinds:
            kinds |= {"trtllm-serve"} if _is_known(content) else set()
    if parts.lines and not kinds:
        kinds = {"lmi"}
    if len(kinds) > 1 and (parts.commands or parts.folders or len(parts.mappings) > 1):
        raise SettingsError(
            f"{origin} are sources of several kinds ({', '.join(sorted(kinds))}); import them one "
            "by one."
        )
    return kinds.pop() if len(kinds) == 1 else ""


def _is_known(content: Mapping[str, Any]) -> bool:
    """Return True if `trtllm-serve` has an option of a YAML file."""
    return any(_known(name, trtllm_serve.TABLE.rules) for name in content)


def _known(name: str, rules: Mapping[str, OptionRule]) -> bool:
    name = name.replace("-", "_")
    below = any(key.startswith(f"{name}.") for key in rules)
    return name in rules or below or name.removeprefix("no_") in rules


def _of_lines(lines: Mapping[str, str], kind: str) -> list[Given]:
    if kind == "lmi":
        return lmi.collect_options(lines)
    return [Given(name.lower(), name, value) for name, value in lines.items()]


def _flattened(
    content: Mapping[str, Any], rules: Mapping[str, OptionRule], path: str = "", *, by_name: bool
) -> Iterator[Given]:
    """Yield the leaves of a mapping, to the depth of the rules."""
    for key, value in content.items():
        spelling = f"{path}{key}"
        name = spelling.replace("-", "_") if by_name else spelling
        if isinstance(value, Mapping) and value and any(r.startswith(f"{name}.") for r in rules):
            yield from _flattened(value, rules, f"{spelling}.", by_name=by_name)
        elif isinstance(value, bool) and name.startswith("no_") and name[3:] in rules:
            yield Given(name[3:], spelling, str(not value).lower())
        else:
            yield Given(name, spelling, _text(value))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _named_files(
    own: Sequence[Given], importer: Importer, others: bool, commands: Sequence[Command]
) -> Iterator[dict[str, Any]]:
    """Yield the files that a command names; a missing one must be another source.

    Raises:
        SettingsError: it is neither a local file nor a source.
    """
    for option in own:
        if commands and option.name in importer.file_options and option.spelling.startswith("-"):
            path = Path(option.value).expanduser()
            if _exists(path) and path.is_file() and not others:
                yield parse_mapping(read_text(path), str(path))
            elif not others:
                raise SettingsError(
                    f"{option.spelling} is {option.value!r}, which is no file here; name the file "
                    "as a further source, or correct the path."
                )


def _once(
    options: Sequence[Given], rules: Mapping[str, OptionRule]
) -> tuple[list[Given], list[str]]:
    """Return each option once, using the last of several, and the spellings of the others."""
    found: dict[str, Given] = {}
    ignored = []
    for option in options:
        rule = find_rule(option.name, rules)
        name = rule.name if rule is not None and option.name in rule.aliases else option.name
        if name in found:
            ignored.append(found[name].spelling)
        found[name] = replace(option, name=name)
    return list(found.values()), ignored
