"""Check a config.yaml with the installed Truss.

Truss refuses more than `configuration` does, and silently accepts unknown keys, which its models
keep as extras. It runs in a separate process, because its import takes seconds; meanwhile `check`
inspects the engine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, RootModel, ValidationError

from trtllm_truss.cli.common import write
from trtllm_truss.configuration import CONFIDENTIAL
from trtllm_truss.engines.diagnostics import Diagnostic, Severity, error, warning
from trtllm_truss.engines.images import PINNED_IMAGE, SYSTEM_PYTHON
from trtllm_truss.processes.child import child_environment
from trtllm_truss.settings.model import MOUNT_EXAMPLE
from trtllm_truss.validation import did_you_mean, dotted_path, holds_credential, shown, shown_name

_MODULE = "truss.base.truss_config"
_LIMIT_S = 120.0
_FEW = 4
_KEY = "[key]"  # pydantic's mark of an error in a mapping's key
_BY_PLACE = {
    "python_version": "choose py310, py311, py312 or py313",
    "resources.cpu": 'write cores in quotes, such as "4" or "4000m"',
    "resources.memory": "write a size with its unit, such as 16Gi",
    "resources.accelerator": "write a GPU's name, such as H100:2",
    ".truss_server_version_override": 'write a release in quotes, such as "0.18.35", or remove it',
    "base_image.image": f"write an image's name, such as {PINNED_IMAGE.name}",
    ".python_executable_path": f"write {SYSTEM_PYTHON}",
    ".source": "write where the files are, such as hf://org/name@revision",
    ".mount_location": f"write a folder of the container, such as {MOUNT_EXAMPLE}",
}
"""Remedies by the suffix of a place."""
_BY_KIND = {
    "string_type": "write a text, in quotes",
    "list_type": "write a list, each value on a line that begins with -",
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type"), "write a mapping, a key: value a line"
    ),
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_from_float"), "write a whole number, without a unit"
    ),
    "greater_than_equal": "write a greater number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "write true or false"),
}
"""Remedies by pydantic's name of an error."""
_READS_FREELY = ("model_metadata",)
"""Keys below which Truss accepts anything."""


class TrussVerdict:
    """Truss's verdict on a file, computed in the background.

    Without an installed Truss, as in a container, there is none.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._program: subprocess.Popen[bytes] | None = None
        if _MODULE not in sys.modules and importlib.util.find_spec("truss") is not None:
            self._program = subprocess.Popen(
                [sys.executable, "-m", "trtllm_truss.cli.truss_verdict", str(file.absolute())],
                cwd=os.sep,  # `-m` imports from the current folder, which may be untrusted
                env=child_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )

    def findings(self, known: Collection[Diagnostic]) -> list[Diagnostic]:
        """Wait for the verdict; return Truss's errors and the keys that it ignores.

        Args:
            known: findings of this project, with remedies; what they already report is dropped.
        """
        try:
            found = self._wait()
        except subprocess.TimeoutExpired:
            return [warning("truss_silent", f"Truss did not answer within {_LIMIT_S:g} s.")]
        except ValueError:
            return [warning("truss_silent", "The installed Truss cannot be imported.")]
        errors = " ".join(each.message for each in known if each.severity is Severity.ERROR)
        told = {"truss_refuses": errors, "unknown_key": " ".join(each.message for each in known)}
        settings_wrong = any(each.code == "settings" for each in known)
        return [
            _diagnostic(each)
            for each in found
            if not (_names(told[each["code"]], each["place"]) if each["place"] else settings_wrong)
        ]

    def _wait(self) -> Sequence[Mapping[str, str]]:
        if _MODULE in sys.modules:
            return [*read_by_truss(self._file)]
        if self._program is None:
            return []
        try:
            output, _ = self._program.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.communicate()
            raise
        found: list[dict[str, str]] = json.loads(output)
        return found


def _names(text: str, place: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(place)}(?!\w)", text) is not None


def _diagnostic(found: Mapping[str, str]) -> Diagnostic:
    message = f"config.yaml: {found['message']}"
    is_error = found["code"] == "truss_refuses"
    return error("truss_refuses", message) if is_error else warning("unknown_key", message)


def read_by_truss(file: Path) -> Iterator[dict[str, str]]:
    """Load a config.yaml with Truss; yield its errors, or the keys that it ignores.

    No message shows a secret's value.
    """
    from truss.base.truss_config import TrussConfig

    try:
        config = TrussConfig.from_yaml(file)
    except ValidationError as refusal:
        for each in refusal.errors(include_context=False, include_url=False):
            place, message = _refusal(each["type"], each["loc"], each["input"], each["msg"])
            yield {"code": "truss_refuses", "place": place, "message": message}
        return
    except Exception as refusal:  # noqa: BLE001 - some of its validators fail on wrong types
        message = f"Truss refuses it: {_sentence(str(refusal) or repr(refusal))}"
        yield {"code": "truss_refuses", "place": "", "message": message}
        return
    yield from _unknown_keys(config)


def _unknown_keys(config: BaseModel) -> Iterator[dict[str, str]]:
    """Yield the keys that Truss's models keep as extras."""
    waiting: list[tuple[str, Any]] = [("", config)]
    while waiting:
        place, value = waiting.pop(0)
        if isinstance(value, list):
            waiting += [(f"{place}[{number}]", each) for number, each in enumerate(value)]
        if isinstance(value, RootModel):
            waiting.append((place, value.root))
            continue
        if not isinstance(value, BaseModel):
            continue
        known = type(value).model_fields
        for name in value.model_extra or ():
            meant = did_you_mean(name, known)
            advice = f"did you mean {meant}?" if meant else "remove it, or correct its name."
            if place and name in type(config).model_fields:
                advice = "it is one of the file's first level: correct the indent."
            elif not meant and len(known) <= _FEW:
                advice = f"it has {' and '.join(known)} there."
            key = f"{place}.{shown_name(name)}".lstrip(".")
            message = f"Truss has no key {key}; {advice}"
            yield {"code": "unknown_key", "place": key, "message": message}
        waiting += [
            (f"{place}.{name}".lstrip("."), getattr(value, name))
            for name in known
            if name not in _READS_FREELY
        ]


def _refusal(
    kind: str, location: Sequence[int | str], value: object, reason: str
) -> tuple[str, str]:
    """Return the place of a Truss error, and a message with the remedy.

    Args:
        kind: pydantic's name of the error.
    """
    place = dotted_path(location)
    told = f"Truss refuses it: {_sentence(reason.removeprefix('Value error, '))}"
    if not place:
        return place, told
    if kind == "invalid_key" or location[-1] == _KEY:
        *parents, key = location[:-1] if location[-1] == _KEY else location
        where = f" of {dotted_path(parents)}" if parents else ""
        return place, f"the key {shown(key)}{where}: put it in quotes, or remove it. {told}"
    if kind == "missing":
        return place, f"{place} is missing; add it. {told}"
    by_place = (remedy for ending, remedy in _BY_PLACE.items() if place.endswith(ending))
    remedy = next(by_place, _BY_KIND.get(kind, "correct it"))
    is_secret = location[0] in CONFIDENTIAL or holds_credential(str(value))
    if is_secret or isinstance(value, (dict, list)):
        return place, f"{place}: {remedy}. {told}"
    return place, f"{place} is {shown(value)}; {remedy}. {told}"


def _sentence(message: str) -> str:
    text = " ".join(message.split())
    return text if text.endswith((".", "!", "?")) else f"{text}."


if __name__ == "__main__":
    write(json.dumps(list(read_by_truss(Path(sys.argv[1])))))
