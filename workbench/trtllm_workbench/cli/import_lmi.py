"""`import-lmi`: convert the configuration of an LMI container to config.yaml."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from trtllm_truss.cli.common import add_truss_options
from trtllm_truss.cli.output import echo, write
from trtllm_truss.configuration import load_configuration, read_config
from trtllm_truss.engines.compatibility.host import HostInfo
from trtllm_truss.errors import SettingsError
from trtllm_workbench.lmi_import.conversion import Row, convert_options
from trtllm_workbench.lmi_import.option import Outcome
from trtllm_workbench.lmi_import.reading import (
    collect_options,
    lmi_variables,
    overridden,
    read_lines,
)
from trtllm_workbench.scaffold.consent import consent_text
from trtllm_workbench.scaffold.documents import comment


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
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="a new file (default: standard output)"
    )


def run(options: argparse.Namespace) -> int:
    """Write config.yaml, and on stderr the outcome of every option.

    Raises:
        SettingsError: an input cannot be read, or the result is not a valid configuration.
    """
    values: dict[str, str] = lmi_variables(os.environ) if options.environment else {}
    for file in options.files:
        values |= _read_file(file)
    given = collect_options(values)
    if not given:
        raise SettingsError(
            "no LMI options to import; name a serving.properties or a file of "
            "environment variables, or add --environment."
        )
    imported = convert_options(given, options.gpus)
    content = read_config(options.truss, None)
    settings, _ = load_configuration(
        {"model_metadata": imported.metadata},
        HostInfo.from_config(content).version_for(),
    )
    sources = [str(file) for file in options.files]
    sources += ["this process's variables"] if options.environment else []
    consent = (
        consent_text(imported.metadata, f"by {' or '.join(sources)}")
        if settings.trust_remote_code
        else ""
    )
    text = comment(consent) + _document(content, imported.metadata, settings.world_size)
    output: Path | None = options.output
    if output is None:
        write(text)
    elif output.exists():
        raise SettingsError(f"--output {output} exists; name a new file.")
    else:
        output.write_text(text, encoding="utf-8")
    report_options(imported.rows, overridden(values, given))
    if consent:
        echo(f"note: {consent}")
    return 0


def _read_file(file: Path) -> dict[str, str]:
    try:
        return read_lines(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {error}") from None


def _document(config: dict[str, Any], metadata: dict[str, Any], ranks: int) -> str:
    """Return the Truss's configuration with new settings and one GPU per rank, as YAML."""
    resources = dict(config.get("resources") or {})
    if accelerator := resources.get("accelerator"):
        kind = str(accelerator).partition(":")[0]
        resources["accelerator"] = kind if ranks == 1 else f"{kind}:{ranks}"
    tags = (config.get("model_metadata") or {}).get("tags")
    document = {
        **config,
        "resources": resources,
        "model_metadata": {**({"tags": tags} if tags else {}), **metadata},
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def report_options(rows: Sequence[Row], ignored: Sequence[str]) -> None:
    """Write the outcome of every LMI option to stderr."""
    for outcome in Outcome:
        some = [row for row in rows if row.outcome is outcome]
        if not some:
            continue
        echo(f"{outcome.value}:")
        for row in some:
            arrow = "→ " if outcome is Outcome.MAPPED else ""
            echo(f"  {row.spelling}={row.value}: {arrow}{row.detail}")
    if ignored:
        echo(f"overridden, so ignored: {', '.join(ignored)}")
