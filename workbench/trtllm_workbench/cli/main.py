"""The command line: the commands of the workbench and of the server."""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_truss.cli.main import SERVER_COMMANDS, run_command_line

_COMMANDS = {
    "init": "write a Truss for an engine, ready to push",
    "serve": "run the Truss in Truss's own server, without Docker",
    "predict": "stream an answer to the terminal",
    "chat": "converse with the model in the terminal",
    "selftest": "serve a model on this machine and check every promise",
    "publish": "upload a built engine",
    "import": "convert settings of another server to config.yaml",
    "import-lmi": "convert LMI settings to config.yaml",
    "demo": "serve, stream one answer with its timings, stop",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `serve` is the workbench's."""
    of_server = {
        package: {name: text for name, text in commands.items() if name not in _COMMANDS}
        for package, commands in SERVER_COMMANDS.items()
    }
    return run_command_line({__package__: _COMMANDS, **of_server}, arguments)
