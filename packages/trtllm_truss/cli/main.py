"""The command line: each command is a module with `add_arguments(parser)` and `run(options)`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from keyword import iskeyword
from typing import NoReturn

from trtllm_truss import __version__
from trtllm_truss.cli.common import echo, unwinding
from trtllm_truss.errors import SettingsError, TrussError
from trtllm_truss.literals import one_line
from trtllm_truss.processes.limits import limit_core_dumps
from trtllm_truss.processes.mpi_job import read_rank

USAGE_STATUS = 2

Commands = Mapping[str, Mapping[str, str]]
"""Summaries of commands by name, by the package that contains their modules."""

_HAS_DYNAMO = find_spec("trtllm_dynamo") is not None
"""Absent in a folder that `init` writes."""

SERVER_COMMANDS: Commands = {
    __package__: {
        "serve": "run the Truss in a separate server, as a container does",
        "check": "verify everything that can be verified without a start",
        "render": "write the Triton model repository",
        "build": "build the engine from a checkpoint",
    },
    **({"trtllm_dynamo": {"dynamo": "serve as a worker of NVIDIA Dynamo"}} if _HAS_DYNAMO else {}),
}


_SERVERS = frozenset({"trtllm-serve", "docker"})
"""Programs whose command lines `init` and `import` can read."""

_OF_RANK_0 = frozenset({"serve", "dynamo"})
"""Commands that `mpirun` or `srun` starts once per GPU, but that only rank 0 runs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command of the server and return its exit status."""
    return run_command_line(SERVER_COMMANDS, arguments)


def run_command_line(packages: Commands, arguments: Sequence[str] | None) -> int:
    """Run one command and return its exit status.

    0 means success, 1 a failure, 2 a wrong command line or wrong settings, 3 (from `check`) a Truss
    that would not start, 130 a stop by Ctrl-C, 143 by SIGTERM. Servers handle these signals
    themselves and return 0.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    limit_core_dumps()
    try:
        with unwinding():
            options, unknown = _parser(packages, words).parse_known_args(words)
            if unknown:
                remedy = _remedy(options.parser, words, unknown)
                options.parser.error(f"unrecognized arguments: {' '.join(unknown)}{remedy}")
            return int(options.run(options))
    except KeyboardInterrupt:
        return 0 if words[:1] == ["serve"] else 130
    except SystemExit as end:
        if words[:1] == ["serve"] and end.code == 128 + signal.SIGTERM:  # before it has started
            return 0
        raise
    except TrussError as error:
        echo(f"error: {error.message}")
        return USAGE_STATUS if isinstance(error, SettingsError) else 1
    except Exception:  # noqa: BLE001 - Python would write the text of a bug's cause unescaped
        echo(*traceback.format_exc().rstrip().split("\n"))
        return 1


def _remedy(parser: argparse.ArgumentParser, words: Sequence[str], unknown: Sequence[str]) -> str:
    """Return the end of the sentence about arguments that the command does not have."""
    from trtllm_truss.validation import did_you_mean  # imports pydantic

    known = [each for action in parser._actions for each in action.option_strings]
    first = unknown[0].partition("=")[0]
    is_wrapped = bool(_SERVERS & set(words[1:]))  # an unquoted command line falls apart
    if not is_wrapped and first.startswith("-") and (meant := did_you_mean(first, known)):
        return f"; did you mean {meant}?"
    if is_wrapped and words[0] in ("import", "init"):
        return "; quote the command"
    if "--truss" in known and not first.startswith("-"):
        return f"; name the Truss's folder with --truss {first}"
    return ""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(one_line(message))

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Suggest the nearest command, as argparse does from Python 3.14 on."""
        if action.choices is not None and value not in action.choices:
            from trtllm_truss.validation import did_you_mean

            names = [str(choice) for choice in action.choices]
            meant = did_you_mean(str(value), names)
            hint = f"did you mean {meant}?" if meant else f"choose from {', '.join(names)}"
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {hint}")


def _module_name(command: str) -> str:
    name = command.replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def _on_rank_0(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    rank = read_rank(os.environ)
    if rank is None or not rank.index:
        return run(options)
    from trtllm_truss.cli.rank import run_rank  # imports the code that starts an engine

    return run_rank(rank, options)


def _parser(packages: Commands, words: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="trtllm-truss",
        description="Serve a TensorRT-LLM engine as a Truss: Triton inside, streamed text outside.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for package, summaries in packages.items():
        for name, summary in summaries.items():
            command = commands.add_parser(name, help=summary)
            if name in words:  # a module takes up to a second to import
                module = import_module(f"{package}.{_module_name(name)}")
                module.add_arguments(command)
                run = partial(_on_rank_0, module.run) if name in _OF_RANK_0 else module.run
                command.set_defaults(run=run, parser=command)
    return parser


if __name__ == "__main__":  # without the workbench, although it is installed
    sys.exit(main())
