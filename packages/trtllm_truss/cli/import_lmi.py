"""`import-lmi`: the configuration of an LMI container as our config.yaml."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from trtllm_truss.cli.layout import read_config
from trtllm_truss.cli.terminal import tell
from trtllm_truss.engines.compatibility.environment import Surroundings
from trtllm_truss.errors import SettingsError
from trtllm_truss.serving.rendering import check_runtime
from trtllm_truss.settings.lmi_import.conversion import Row, convert_options
from trtllm_truss.settings.lmi_import.option import Fate
from trtllm_truss.settings.lmi_import.reading import (
    given_options,
    lmi_variables,
    overridden,
    read_lines,
)
from trtllm_truss.settings.loading import parse_settings


def import_lmi(
    files: Sequence[Path],
    *,
    environment: bool,
    gpus: int | None,
    truss: Path,
    output: Path | None,
) -> int:
    """Writes config.yaml, and on stderr what became of every option.

    Args:
        files: serving.properties, files of environment variables, or both; later ones win.
        environment: whether this process's own variables count, after those of the files.
        gpus: what `tensor_parallel_degree=max` means.
        truss: the Truss whose config.yaml holds everything that LMI does not know of.
        output: the file to write; None is stdout.

    Raises:
        SettingsError: an input cannot be read, or what it says is no valid configuration.
    """
    values: dict[str, str] = lmi_variables(os.environ) if environment else {}
    for file in files:
        values |= _lines_of(file)
    given = given_options(values)
    if not given:
        raise SettingsError(
            "there is no option of LMI to import; name a serving.properties or a file of "
            "environment variables, or add --environment."
        )
    imported = convert_options(given, gpus)
    settings = parse_settings({"model_metadata": imported.metadata})
    content = read_config(truss, None)
    check_runtime(settings, Surroundings.from_config(content).tensorrt_llm_version)
    ranks = settings.world_size
    text = _document(content, imported.metadata, ranks)
    if output is None:
        print(text, end="")
    elif output.exists():
        raise SettingsError(f"--output {output} exists; name a new file.")
    else:
        output.write_text(text, encoding="utf-8")
    _report(imported.rows, overridden(values, given))
    return 0


def _lines_of(file: Path) -> dict[str, str]:
    try:
        return read_lines(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read: {error}") from None


def _document(config: dict[str, Any], metadata: dict[str, Any], ranks: int) -> str:
    """The Truss's configuration with other settings, and a GPU for each rank."""
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


def _report(rows: Sequence[Row], lost: Sequence[str]) -> None:
    for fate in Fate:
        some = [row for row in rows if row.fate is fate]
        if not some:
            continue
        tell(f"{fate.value}:")
        for row in some:
            arrow = "→ " if fate is Fate.MAPPED else ""
            tell(f"  {row.written}={row.value}: {arrow}{row.sentence}")
    if lost:
        tell(f"given otherwise as well, so left out: {', '.join(lost)}")
