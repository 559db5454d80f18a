"""The command line: what can be typed, and which module answers it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from trtllm_truss import __version__
from trtllm_truss.cli.signals import unwinding
from trtllm_truss.cli.terminal import tell
from trtllm_truss.errors import SettingsError, TrussError

USAGE_STATUS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    0 means done; 1 that it failed; 2 that the command line or the settings are wrong; 3 (of
    `check`) that the Truss would not start; 130 that Ctrl-C ended it. SIGTERM ends the process
    with 143.
    """
    options = _parser().parse_args(arguments)
    try:
        with unwinding():
            return int(options.run(options))
    except KeyboardInterrupt:
        return 130
    except TrussError as error:
        tell(f"error: {error.message}")
        return USAGE_STATUS if isinstance(error, SettingsError) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trtllm-truss",
        description="Serve a TensorRT-LLM engine as a Truss: Triton inside, streamed text outside.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="run the Truss in Truss's own server, no Docker"))
    _add_predict(commands.add_parser("predict", help="stream an answer to the terminal"))
    _add_check(commands.add_parser("check", help="verify everything that needs no start"))
    _add_render(commands.add_parser("render", help="write the Triton model repository"))
    _add_build(commands.add_parser("build", help="make the engine out of a checkpoint"))
    _add_publish(commands.add_parser("publish", help="upload a built engine"))
    _add_import_lmi(commands.add_parser("import-lmi", help="turn LMI's settings into config.yaml"))
    _add_demo(commands.add_parser("demo", help="serve, stream one answer with its timings, stop"))
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _add_truss_options(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on (default: %(default)s; 0.0.0.0 is every one, and nothing "
        "asks callers for a key)",
    )
    parser.add_argument("--port", type=_port, default=8080, help="HTTP port (default: 8080)")
    parser.add_argument(
        "--remote-api",
        type=_port,
        metavar="PORT",
        help="answer the lookups of `truss predict` on this port as well, on loopback only",
    )
    parser.set_defaults(run=_serve)


def _add_predict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue")
    parser.add_argument(
        "--url",
        default="http://localhost:8080",
        help="a local server, or the predict URL of a deployed Truss (default: %(default)s); the "
        "variable BASETEN_API_KEY is sent along over https",
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens to generate")
    parser.add_argument(
        "--stop", action="append", metavar="WORD", help="end before this word; may be repeated"
    )
    parser.add_argument("--chat", action="store_true", help="PROMPT is a message, not a text")
    parser.add_argument("--no-stream", action="store_true", help="print the whole answer at once")
    parser.set_defaults(run=_predict)


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_truss_options(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=_check)


def _add_render(parser: argparse.ArgumentParser) -> None:
    _add_truss_options(parser)
    parser.add_argument(
        "--engine", type=Path, metavar="DIR", help="the engine's folder (default: the settings')"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="a new or empty folder"
    )
    parser.set_defaults(run=_render)


def _add_build(parser: argparse.ArgumentParser) -> None:
    _add_truss_options(parser)
    parser.add_argument(
        "--plan", action="store_true", help="print the commands and what they take, run nothing"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="a new or empty folder for the engine"
    )
    parser.set_defaults(run=_build)


def _add_publish(parser: argparse.ArgumentParser) -> None:
    _add_truss_options(parser)
    parser.add_argument(
        "--engine", type=Path, metavar="DIR", help="the engine's folder (default: the one built)"
    )
    parser.add_argument(
        "--to", metavar="REPOSITORY", help="org/name or s3://bucket/prefix (default: the settings')"
    )
    parser.set_defaults(run=_publish)


def _add_import_lmi(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="a serving.properties, or a file of environment variables (KEY=value)",
    )
    parser.add_argument(
        "--environment", action="store_true", help="read this process's own variables as well"
    )
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="what tensor_parallel_degree=max means"
    )
    parser.add_argument(
        "--truss", type=Path, default=Path(), metavar="DIR", help="the Truss (default: .)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: print it")
    parser.set_defaults(run=_import_lmi)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    _add_truss_options(parser)
    parser.add_argument("--prompt", default="What is machine learning?", help="what is asked")
    parser.set_defaults(run=_demo)


def _add_truss_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--truss", type=Path, default=Path(), metavar="DIR", help="the Truss (default: .)"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="replaces the Truss's config.yaml"
    )


def _port(text: str) -> int:
    if text.isdigit() and 1 <= int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port; it must be 1 to 65535")


def _serve(options: argparse.Namespace) -> int:
    from trtllm_truss.cli.serve import serve

    return serve(options.truss, options.config, options.port, options.remote_api, options.host)


def _predict(options: argparse.Namespace) -> int:
    from trtllm_truss.cli.predict import predict

    return predict(
        options.url,
        options.prompt,
        chat=options.chat,
        max_tokens=options.max_tokens,
        stop=options.stop or [],
        stream=not options.no_stream,
    )


def _check(options: argparse.Namespace) -> int:
    from trtllm_truss.cli.check import check

    return check(options.truss, options.config, as_json=options.json)


def _render(options: argparse.Namespace) -> int:
    from trtllm_truss.cli.render import render

    return render(options.truss, options.config, options.engine, options.output)


def _build(options: argparse.Namespace) -> int:
    from trtllm_truss.cli.build import build

    return build(options.truss, options.config, options.output, plan_only=options.plan)


def _publish(options: argparse.Namespace) -> int:
    from trtllm_truss.cli.publish import publish

    return publish(options.truss, options.config, options.engine, options.to)


def _import_lmi(options: argparse.Namespace) -> int:
    from trtllm_truss.cli.import_lmi import import_lmi

    return import_lmi(
        options.files,
        environment=options.environment,
        gpus=options.gpus,
        truss=options.truss,
        output=options.output,
    )


def _demo(options: argparse.Namespace) -> int:
    from trtllm_truss.cli.demo import demo

    return demo(options.truss, options.config, options.prompt)
