"""MPI's daemon on a member: what `mpirun` may ask for, and the command that is run for it.

`mpirun` hands its launch agent a host and a shell command. Only the few values in it that identify
the job are taken, each in a strict form; a member builds the command itself. So a member runs no
text that came over the network.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path, PurePosixPath

_OPTIONS = {"prted": "--prtemca", "orted": "-mca"}
_NAMESPACE = r"prterun-[A-Za-z0-9._-]{1,253}-\d{1,10}@0"
_TCP = r"tcp://(?P<hosts>[\d.,]{7,255}):\d{1,5}(:[\d,]{1,32})?"
_SMALL = re.compile(r"\d{1,4}")
_VALUES = {
    "prted": {
        "ess_base_nspace": re.compile(_NAMESPACE),
        "ess_base_vpid": _SMALL,
        "ess_base_num_procs": _SMALL,
        "prte_hnp_uri": re.compile(rf"{_NAMESPACE}\.0;{_TCP}"),
    },
    "orted": {
        "ess_base_jobid": re.compile(r"\d{1,10}"),
        "ess_base_vpid": _SMALL,
        "ess_base_num_procs": _SMALL,
        "orte_node_regex": re.compile(r"[A-Za-z0-9._,:@()\[\]-]{1,4096}"),
        "orte_hnp_uri": re.compile(rf"\d{{1,10}}\.0;{_TCP}"),
    },
}
"""Values that identify a job, by the daemon's name: Open MPI 5's and Open MPI 4's."""
_URIS = ("prte_hnp_uri", "orte_hnp_uri")


class WrongCommand(Exception):
    """A launch that is not of this job; the text names the value at fault."""


def read_command(words: Sequence[str]) -> dict[str, str]:
    """Return the values that identify the job, from the command that `mpirun` gives to its agent.

    Args:
        words: the agent's arguments after the host; together a line for a POSIX shell, which sets
            variables and then runs the daemon.

    Raises:
        WrongCommand: the line does not run MPI's daemon.
    """
    try:
        lexer = shlex.shlex(" ".join(words), posix=True, punctuation_chars=";")
        lexer.whitespace_split = True
        *_, (program, *arguments) = _commands(lexer)
    except ValueError as error:
        raise WrongCommand(f"mpirun's command cannot be read: {error}") from error
    name = PurePosixPath(program).name
    if name not in _OPTIONS:
        raise WrongCommand(f"mpirun's command runs {name}, not one of {', '.join(_OPTIONS)}")
    found = {"program": name}
    for option, key, value in zip(arguments, arguments[1:], arguments[2:], strict=False):
        if option == _OPTIONS[name] and key in _VALUES[name]:
            found[key] = value
    return found


def _commands(tokens: Iterable[str]) -> Iterator[list[str]]:
    """Yield the words of each command of a shell line."""
    for is_end, words in groupby(tokens, ";".__eq__):
        if not is_end:
            yield [*words]


def check_values(values: Mapping[str, object], leader: str) -> None:
    """Accept the values of one launch, and nothing else.

    Args:
        values: a message's.
        leader: the leader's address; the daemon may connect to no other host.

    Raises:
        WrongCommand: a value is missing, unknown or of another form.
    """
    program = values.get("program")
    forms = _VALUES.get(program) if isinstance(program, str) else None
    if forms is None or values.keys() != {"program", *forms}:
        raise WrongCommand(f"the launch has the values {sorted(map(str, values))}")
    for name, form in forms.items():
        value = values[name]
        found = form.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise WrongCommand(f"{name} of the launch is malformed")
        if name in _URIS and found["hosts"] != leader:
            raise WrongCommand(f"{name} of the launch does not name the leader, {leader}, alone")


def daemon_command(mpirun: Path, values: Mapping[str, str], *, as_root: bool) -> list[str]:
    """Build the daemon's argument vector from accepted values.

    The daemon stays in the foreground, so that the process guard above it sees its end.
    """
    program = values["program"]
    command = [str(mpirun.with_name(program))]
    if as_root and program == "prted":
        command.append("--allow-run-as-root")
    if program == "prted":
        command.append("--leave-session-attached")
    for name, value in {"ess": "env", **values}.items():
        if name != "program":
            command += [_OPTIONS[program], name, value]
    return command
