"""`import-lmi`: convert the configuration of an LMI container to config.yaml."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from trtllm_truss.cli.common import add_truss_options
from trtllm_truss.configuration import read_config
from trtllm_truss.errors import SettingsError
from trtllm_workbench.cli.import_ import add_output, deliver
from trtllm_workbench.importers.files import read_text
from trtllm_workbench.importers.lmi import (
    collect_options,
    convert_options,
    lmi_variables,
    overridden,
)
from trtllm_workbench.importers.reading import read_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="a serving.properties, or a file of environment variables (KEY=value); later ones win",
    )
    parser.add_argument(
        "--environment", action="store_true", help="read this process's variables as well"
    )
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="the value of tensor_parallel_degree=max"
    )
    add_truss_options(parser, config=False)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Write config.yaml, and on stderr the outcome of every option.

    Raises:
        SettingsError: an input cannot be read, or the result is not a valid configuration.
    """
    values: dict[str, str] = lmi_variables(os.environ) if options.environment else {}
    for file in options.files:
        values |= read_lines(read_text(file), str(file))
    given = collect_options(values)
    if not given:
        raise SettingsError(
            "no LMI options to import; name a serving.properties or a file of "
            "environment variables, or add --environment."
        )
    imported = convert_options(given, options.gpus)
    sources = [str(file) for file in options.files]
    sources += ["this process's variables"] if options.environment else []
    content = read_config(options.truss, None)
    ignored = overridden(values, given)
    return deliver(imported, ignored, content, options.output, " or ".join(sources))
