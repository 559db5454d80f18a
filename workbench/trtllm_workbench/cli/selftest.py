"""`selftest`: check every promise on this machine and print a table."""

from __future__ import annotations

import argparse
from pathlib import Path

from trtllm_truss.cli.common import echo, report, writing
from trtllm_truss.configuration import read_config
from trtllm_truss.processes.child import sweep, temporary_folder
from trtllm_workbench.selftest.runner import MACHINE_STEPS, STEPS, Order, Runner
from trtllm_workbench.selftest.served_model import Result
from trtllm_workbench.selftest.subjects import KINDS

_MOST_RANKS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve a tiny model, or yours, with `trtllm-truss serve` and check every promise. Exit "
        "status: 0 if all checks passed, 1 if one failed."
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--config", type=Path, metavar="FILE", help="check your Truss's config.yaml")
    what.add_argument(
        "--engine", metavar="REPO", help="check your engine: a folder, or any engine_repository"
    )
    what.add_argument(
        "--model",
        action="append",
        choices=KINDS,
        help="tiny models to make: engine (trtllm-build), checkpoint (LLM API), cpu (default: "
        "engine and checkpoint if there is a GPU, otherwise cpu); may be repeated",
    )
    what.add_argument(
        "--machine",
        action="store_true",
        help="check this machine within a minute, without a model: the steps "
        f"{' and '.join(MACHINE_STEPS)}",
    )
    parser.add_argument(
        "--truss", type=Path, metavar="DIR", help="the Truss of --config (default: its folder)"
    )
    parser.add_argument("--tokenizer", metavar="REPO", help="of --engine (default: the engine's)")
    parser.add_argument(
        "--ranks",
        type=_ranks,
        default=(),
        metavar="N[,N]",
        help="ranks of the tiny models (default: 1, and the number of GPUs)",
    )
    parser.add_argument(
        "--template", type=Path, metavar="FILE", help="NVIDIA's config.pbtxt (default: the image's)"
    )
    steps = parser.add_mutually_exclusive_group()
    names = ", ".join(STEPS)
    steps.add_argument(
        "--only", action="append", choices=STEPS, metavar="STEP", help=f"one or more of {names}"
    )
    steps.add_argument(
        "--skip", action="append", choices=STEPS, metavar="STEP", help="leave out one or more"
    )
    parser.add_argument("--quick", action="store_true", help="measure speed with fewer tokens")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write all results as JSON, for a bug report"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print the server's log to standard error"
    )


def run(options: argparse.Namespace) -> int:
    """Print the table and return the exit status.

    Raises:
        SettingsError: an option is wrong, or the output cannot be written.
        ArtifactError: the engine is unreadable.
    """
    config = None
    if options.config is not None:
        config = read_config(options.config.parent, options.config)
    steps = [
        step
        for step in (MACHINE_STEPS if options.machine else STEPS)
        if step in (options.only or STEPS) and step not in (options.skip or ())
    ]
    order = Order(
        steps=steps,
        ranks=options.ranks,
        kinds=options.model or (),
        config=config,
        truss=(options.truss or (options.config or Path("config.yaml")).parent).absolute(),
        base=(options.config or Path()).absolute().parent,
        engine=options.engine,
        tokenizer=options.tokenizer,
        template=options.template,
        quick=options.quick,
    )
    if options.output is not None:
        _write(options.output, "{}\n")  # before the minutes, not after them
    table = _Table()
    log = echo if options.verbose else lambda line: None
    sweep()  # left by an earlier run that was killed
    with temporary_folder() as work:
        outcome = Runner(order, work, table.add, log).run()
    report(outcome.summary())
    if options.output is not None:
        _write(options.output, outcome.to_json())
    return outcome.status


class _Table:
    """Prints each result as it arrives, below the name of its subject."""

    def __init__(self) -> None:
        self._subject: str | None = None

    def add(self, result: Result) -> None:
        if result.subject != self._subject:
            self._subject = result.subject
            report("", result.subject or "this machine")
        report(f"  {result.row()}")


def _ranks(text: str) -> tuple[int, ...]:
    counts = [int(part) if part.isdigit() else 0 for part in text.split(",")]
    if not all(1 <= count <= _MOST_RANKS for count in counts):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be numbers from 1 to {_MOST_RANKS}, separated by commas"
        )
    return tuple(sorted(set(counts)))


def _write(file: Path, text: str) -> None:
    with writing(file):
        file.write_text(text, encoding="utf-8")
