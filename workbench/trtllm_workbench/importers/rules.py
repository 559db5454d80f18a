"""Rules for other servers' options, and their conversion to keys of config.yaml."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from trtllm_truss import yaml_files
from trtllm_truss.engines.checkpoint.arguments import RUNTIME_KEYS
from trtllm_truss.errors import SettingsError
from trtllm_truss.literals import BOOLEANS
from trtllm_truss.validation import did_you_mean, holds_credential, names_credential, shown

TOP = "config.yaml: "
"""Prefix of a target outside `model_metadata`."""

_AWQ_CALIB_SIZE = 32
"""Maximum number of AWQ samples in TensorRT-LLM's quantize.py."""
_BUILD = "build."
_NULL = "null"
_CREDENTIAL_INSIDE = re.compile(
    r"(token|secret|password|credential|api_?key)[\"']?\s*[:=]", re.IGNORECASE
)
_VARIABLE = re.compile(r"[^\s$]*\$\{?[A-Za-z_]\S*")

Kind = Literal["build", "engine", "checkpoint"]
"""Kind of the new Truss: it builds an engine, or serves a prebuilt one or a checkpoint."""


class Outcome(str, enum.Enum):
    MAPPED = "mapped"
    NOT_NEEDED = "not needed any more"
    UNSUPPORTED = "unsupported"
    NOT_TAKEN = "not taken from the repository"
    UNKNOWN = "unknown"


class Refused(ValueError):
    """A valid value without a counterpart; its text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRule:
    """The rule for one option.

    Attributes:
        name: option name; `*` at the end stands for any text.
        outcome: its outcome.
        target: key below `model_metadata`, or after `TOP` that of config.yaml; a mapping as value
            is merged into existing ones. `*` is the text that the `*` in the name stands for.
        prebuilt: key for a prebuilt engine; without it, such an engine does not need the option.
        checkpoint: key for a checkpoint in the LLM API, whatever `outcome` is for engines. Without
            it, a checkpoint uses `prebuilt`, or a `target` outside the build.
        convert: parses the value; raises ValueError for an invalid one, `Refused` for one without a
            counterpart.
        methods: quantization methods that use it; empty means all.
        only: values for which `outcome` applies, others are unsupported; empty means all.
        reason: reason as a sentence without its full stop; may be empty with a target.
        operator_says: option of `init` for a choice reserved to the operator: to run code, or to
            use another repository. Settings inside a repository cannot make that choice.
        aliases: other names, such as a command line's short one.
        switch: a command-line word without a value.
        several: a command-line word with one or more values.
    """

    name: str
    outcome: Outcome = Outcome.MAPPED
    target: str = ""
    prebuilt: str = ""
    checkpoint: str = ""
    convert: Callable[[str], object] = str
    methods: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    reason: str = ""
    operator_says: str = ""
    aliases: tuple[str, ...] = ()
    switch: bool = False
    several: bool = False

    @property
    def is_switch(self) -> bool:
        return self.switch or self.convert in (flag, inverted_flag, default_object, graphs)


@dataclass(frozen=True, slots=True)
class Given:
    """An option as found.

    Attributes:
        name: name in the table of rules.
        spelling: spelling in the source: `option.dtype`, `OPTION_DTYPE`, `--dtype` …
        value: excluded from every repr, since it may be a token.
        text: the value as found, if `value` replaces it.
    """

    name: str
    spelling: str
    value: str
    text: str = ""

    def __repr__(self) -> str:
        return f"Given({self.spelling})"

    @property
    def shown(self) -> str:
        """The value, or "…" for a secret."""
        text = self.text or self.value
        secret = self.is_named_secret or self.holds_secret
        return "…" if secret and text not in ("", _NULL) else text

    @property
    def is_named_secret(self) -> bool:
        return names_credential(f"{self.name} {self.spelling}")

    @property
    def holds_secret(self) -> bool:
        text = f"{self.value} {self.text}"
        return holds_credential(text) or bool(_CREDENTIAL_INSIDE.search(text))


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the report.

    Attributes:
        spelling: the option as found.
        value: safe to print.
        outcome: its outcome.
        detail: its key, or the reason.
    """

    spelling: str
    value: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """A converted configuration.

    Attributes:
        metadata: keys of `model_metadata`, not validated.
        rows: one per option.
        config: other keys of config.yaml.
        kind: kind of the new Truss.
    """

    metadata: dict[str, Any]
    rows: tuple[Row, ...]
    config: dict[str, Any] = field(default_factory=dict)
    kind: Kind = "checkpoint"


@dataclass(frozen=True, slots=True)
class RuleTable:
    """The options of one server.

    Attributes:
        title: its name in sentences.
        sections: its rules by their headings in the documentation.
    """

    title: str
    sections: Mapping[str, Sequence[OptionRule]]

    @property
    def rules(self) -> dict[str, OptionRule]:
        every = [rule for section in self.sections.values() for rule in section]
        return {rule.name: rule for rule in every} | {
            alias: rule for rule in every for alias in rule.aliases
        }


def apply_rules(
    given: Sequence[Given], rules: Mapping[str, OptionRule], kind: Kind, *, title: str
) -> ConversionResult:
    """Convert options, each to exactly one row.

    Args:
        given: each option once.
        rules: rules of the server, by name and alias.
        kind: what the new Truss serves.
        title: of the server.

    Raises:
        SettingsError: an option has an invalid value.
    """
    result = ConversionResult({}, (), {}, kind)
    places = {name: place for place, name in enumerate(rules)}
    found = [(find_rule(option.name, rules), option) for option in given]
    found.sort(key=lambda pair: places.get(pair[0].name if pair[0] else "", len(places)))
    method = _method(found)
    rows = []
    for rule, option in found:
        if rule is None:
            close = did_you_mean(option.name, [name for name in rules if "*" not in name])
            hint = f"; did you mean {close}?" if close else ""
            detail = f"unknown to {title}'s documentation{hint}"
            rows.append(Row(option.spelling, option.shown, Outcome.UNKNOWN, detail))
        else:
            rows.append(_apply(option, rule, result, method))
    _complete(result.metadata.get("build", {}))
    return ConversionResult(result.metadata, tuple(rows), result.config, kind)


def find_rule(name: str, rules: Mapping[str, OptionRule]) -> OptionRule | None:
    """Return the rule for a name, otherwise the longest matching one with `*`."""
    if name in rules:
        return rules[name]
    fitting = [key for key in rules if key.endswith("*") and name.startswith(key[:-1])]
    return rules[max(fitting, key=len)] if fitting else None


def _method(found: Sequence[tuple[OptionRule | None, Given]]) -> str:
    """Return the method of quantization; empty for none."""
    for rule, option in found:
        if rule is not None and rule.target.endswith("quantization.method"):
            try:
                return str(_converted(rule, option) or "")
            except Refused:
                return ""
    return ""


def _apply(given: Given, rule: OptionRule, result: ConversionResult, method: str) -> Row:
    name = given.spelling if given.spelling.lower() == given.name else given.name  # variables
    target = _target(rule, result.kind).replace("*", name[len(rule.name) - 1 :])
    try:
        if left_out := _left_out(given, rule, target, result.kind, method):
            return Row(given.spelling, given.shown, *left_out)
        if given.holds_secret or ("*" in rule.name and given.is_named_secret):
            detail = "it holds a secret, which config.yaml never does; set it in the workspace"
            return Row(given.spelling, given.shown, Outcome.UNSUPPORTED, detail)
        if _VARIABLE.fullmatch(given.value):
            raise SettingsError(
                f"{given.spelling} is {given.value!r}, with a variable that nothing here sets; "
                "write its value."
            )
        value = _converted(rule, given)
    except Refused as reason:
        return Row(given.spelling, given.shown, Outcome.UNSUPPORTED, str(reason))
    if target.startswith(TOP):
        _put(result.config, target.removeprefix(TOP), value)
    else:
        _put(result.metadata, target, value)
    note = f" ({rule.reason})" if rule.reason and target == rule.target else ""
    return Row(given.spelling, given.shown, Outcome.MAPPED, f"{target}={_brief(value)}{note}")


def _brief(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


def _target(rule: OptionRule, kind: Kind) -> str:
    if kind == "checkpoint":
        return rule.checkpoint or rule.prebuilt or rule.target
    if kind == "engine" and rule.prebuilt:
        return rule.prebuilt
    return rule.target


def _left_out(
    given: Given, rule: OptionRule, target: str, kind: Kind, method: str
) -> tuple[Outcome, str] | None:
    """Return why an option is not converted; None if it is."""
    if rule.outcome is Outcome.MAPPED and given.value in ("", _NULL) and not _takes_null(rule):
        return Outcome.NOT_NEEDED, "it has no value, so that the default applies"
    if kind == "checkpoint" and rule.checkpoint:
        return None
    if rule.only and given.value.lower() not in map(str.lower, rule.only):
        allowed = " and ".join(rule.only)
        return Outcome.UNSUPPORTED, f"only {allowed} can be converted: {rule.reason}"
    if rule.outcome is not Outcome.MAPPED:
        return rule.outcome, rule.reason
    if kind == "checkpoint":
        return _without_counterpart(target)
    if rule.methods and method not in rule.methods:
        return Outcome.NOT_NEEDED, f"applies to {' and '.join(rule.methods)} only"
    if kind == "engine" and target.startswith(_BUILD):
        return Outcome.NOT_NEEDED, "the engine is prebuilt"
    return None


def _takes_null(rule: OptionRule) -> bool:
    return rule.convert is json_value


def _without_counterpart(target: str) -> tuple[Outcome, str] | None:
    if target.startswith(f"{_BUILD}quantization."):
        return Outcome.UNSUPPORTED, "a checkpoint is served with its own quantization"
    if target.startswith(_BUILD) or target == _BUILD.rstrip("."):
        return Outcome.NOT_NEEDED, "nothing is built from a checkpoint"
    key = RUNTIME_KEYS.get(target.removeprefix("runtime."))
    if key and key.unused:
        return Outcome.NOT_NEEDED, key.unused
    if key and key.refused:
        return Outcome.UNSUPPORTED, f"it {key.refused}"
    return None


def _converted(rule: OptionRule, given: Given) -> object:
    try:
        return rule.convert(given.value)
    except Refused:
        raise
    except ValueError as error:
        must = "it must be a number" if rule.convert in (int, float) else str(error)
        raise SettingsError(f"{given.spelling} is {given.shown!r}; {must}.") from None


def _put(section: dict[str, Any], path: str, value: object) -> None:
    *parents, key = path.split(".")
    for parent in parents:
        section = section.setdefault(parent, {})
    if isinstance(value, Mapping) and isinstance(section.get(key), dict):
        section[key].update(value)
    else:
        section[key] = dict(value) if isinstance(value, Mapping) else value


def _complete(build: dict[str, Any]) -> None:
    """Enforce TensorRT-LLM's limits; drop quantization options without a method."""
    quantization = build.get("quantization", {})
    if quantization.get("method") is None:
        build.pop("quantization", None)
    elif quantization["method"] == "awq" and "calib_size" in quantization:
        quantization["calib_size"] = min(quantization["calib_size"], _AWQ_CALIB_SIZE)


def not_needed(reason: str, *names: str, only: Collection[str] = ()) -> tuple[OptionRule, ...]:
    return tuple(
        OptionRule(name=name, outcome=Outcome.NOT_NEEDED, only=tuple(only), reason=reason)
        for name in names
    )


def unsupported(reason: str, *names: str) -> tuple[OptionRule, ...]:
    return tuple(
        OptionRule(name=name, outcome=Outcome.UNSUPPORTED, reason=reason) for name in names
    )


def switches(rules: Sequence[OptionRule]) -> tuple[OptionRule, ...]:
    """Return rules for words without a value."""
    return tuple(
        OptionRule(
            name=rule.name, outcome=rule.outcome, only=rule.only, reason=rule.reason, switch=True
        )
        for rule in rules
    )


def flag(text: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise ValueError("it must be true or false")
    return BOOLEANS[text.lower()]


def inverted_flag(text: str) -> bool:
    return not flag(text)


def default_object(text: str) -> dict[str, object] | None:
    """Convert true to an object with all defaults, and false to null, which disables it."""
    return {} if flag(text) else None


def graphs(eager: str) -> dict[str, object] | None:
    """Convert a switch that disables CUDA graphs."""
    return default_object("false" if flag(eager) else "true")


@dataclass(frozen=True, slots=True)
class WordMap:
    """Parses one of a few words, in any case.

    Attributes:
        meanings: the values of words.
        refused: why other words have no counterpart; empty if they are an error.
    """

    meanings: Mapping[str, object] = field(default_factory=dict)
    refused: str = ""

    def __call__(self, text: str) -> object:
        if text.lower() in self.meanings:
            return self.meanings[text.lower()]
        if self.refused:
            raise Refused(self.refused)
        raise ValueError(f"it must be one of {', '.join(self.meanings)}")


def json_value(text: str) -> object:
    """Parse JSON or YAML."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # YAML includes most of JSON, but not its escapes
        pass
    try:
        return yaml_files.load(text)
    except yaml.YAMLError:
        raise ValueError("it must be valid JSON") from None


def json_list(text: str) -> object:
    value = json_value(text if text.startswith("[") else f"[{text}]")
    if not isinstance(value, list):
        raise ValueError("it must be a list")
    return value


def token_count(text: str) -> int:
    """Parse a number of tokens, also in vLLM's notation: `32k` is 32,000 and `32K` is 32,768."""
    if text in ("auto", "-1"):
        raise Refused("the model's own length, up to 32,768 tokens, unless a number is set")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text.strip())
    if match is None:
        raise ValueError("it must be a number of tokens")
    units = {"": 1, "k": 1000, "K": 1 << 10, "m": 10**6, "M": 1 << 20}
    return int(float(match[1]) * units[match[2]])


def share(text: str) -> float:
    """Parse a share of the GPU's memory; 1 would leave none."""
    value = float(text)
    if value >= 1:
        raise Refused("nothing would be left beside the KV cache; a share below 1 is needed")
    return value


def comma_separated(text: str) -> str:
    """Convert a JSON list of numbers for `config.pbtxt`."""
    return text.strip("[] ").replace(" ", "")
