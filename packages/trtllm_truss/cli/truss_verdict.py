"""The installed Truss's own reading of a config.yaml.

Truss refuses more than `configuration` knows, and accepts unknown keys in silence, which its models
keep as extras. It is asked in a process of its own: its import takes seconds, and `check` inspects
the engine meanwhile.
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

from trtllm_truss.cli.common import write
from trtllm_truss.engines.diagnostics import Diagnostic, Severity, error, warning
from trtllm_truss.processes.child import child_environment
from trtllm_truss.validation import did_you_mean, dotted_path, shown_name

_MODULE = "truss.base.truss_config"
_LIMIT_S = 120.0
_READS_FREELY = ("model_metadata",)
"""Keys below which Truss takes anything."""


class TrussVerdict:
    """Truss's verdict on a file, on its way.

    Without an installed Truss, as in a container, there is none.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._program: subprocess.Popen[bytes] | None = None
        if _MODULE not in sys.modules and importlib.util.find_spec("truss") is not None:
            self._program = subprocess.Popen(
                [sys.executable, "-m", "trtllm_truss.cli.truss_verdict", str(file.absolute())],
                cwd=os.sep,  # `-m` imports from the current folder, which may be a stranger's
                env=child_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )

    def findings(self, known: Collection[Diagnostic]) -> list[Diagnostic]:
        """Wait for the verdict; return what Truss refuses and the keys that it passes over.

        Args:
            known: findings of this project, with remedies; what its errors name is left out.
        """
        try:
            found = self._wait()
        except subprocess.TimeoutExpired:
            return [warning("truss_silent", f"Truss did not answer within {_LIMIT_S:g} s.")]
        except ValueError:
            return [warning("truss_silent", "The installed Truss cannot be imported.")]
        told = " ".join(each.message for each in known if each.severity is Severity.ERROR)
        settings_wrong = any(each.code == "settings" for each in known)
        return [
            _diagnostic(each)
            for each in found
            if not (_names(told, each["place"]) if each["place"] else settings_wrong)
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
    if found["code"] == "truss_refuses":
        return error("truss_refuses", f"config.yaml: Truss refuses it: {found['message']}")
    return warning("unknown_key", f"config.yaml: {found['message']}")


def read_by_truss(file: Path) -> Iterator[dict[str, str]]:
    """Load a config.yaml with Truss; yield its errors, or the keys that it passes over.

    No message shows a value that Truss did not put into a sentence of its own: it may be a secret.
    """
    from pydantic import BaseModel, RootModel, ValidationError
    from truss.base.truss_config import TrussConfig

    try:
        config = TrussConfig.from_yaml(file)
    except ValidationError as refusal:
        for each in refusal.errors(include_input=False, include_context=False, include_url=False):
            place = dotted_path(each["loc"])
            reason = each["msg"].removeprefix("Value error, ")
            message = f"{place}: {reason}" if place else reason
            yield {"code": "truss_refuses", "place": place, "message": _sentence(message)}
        return
    except Exception as refusal:  # noqa: BLE001 - some of its validators fail on wrong types
        message = _sentence(str(refusal) or repr(refusal))
        yield {"code": "truss_refuses", "place": "", "message": message}
        return
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
            key = f"{place}.{shown_name(name)}".lstrip(".")
            message = f"Truss has no key {key}; {advice}"
            yield {"code": "unknown_key", "place": key, "message": message}
        waiting += [
            (f"{place}.{name}".lstrip("."), getattr(value, name))
            for name in known
            if name not in _READS_FREELY
        ]


def _sentence(message: str) -> str:
    text = " ".join(message.split())
    return text if text.endswith((".", "!", "?")) else f"{text}."


if __name__ == "__main__":
    write(json.dumps(list(read_by_truss(Path(sys.argv[1])))))
