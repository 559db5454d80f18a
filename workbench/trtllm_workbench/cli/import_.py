"""`import`: convert the configuration of another server to config.yaml."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trtllm_truss.cli.common import add_truss_options, echo, write, writing
from trtllm_truss.configuration import load_configuration, read_config
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.images import BaseImage, newest_image
from trtllm_truss.errors import SettingsError
from trtllm_workbench.importers.reading import IMPORTERS, read_sources
from trtllm_workbench.importers.rules import ConversionResult, Outcome, Row
from trtllm_workbench.scaffold.documents import (
    OWN_NAME,
    comment,
    consent_text,
    description,
    merged,
    model_name,
)
from trtllm_workbench.scaffold.origin import is_folder
from trtllm_workbench.scaffold.planning import BUILT, TITLES, engine_here, fix_parallelism


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="a config.yaml with trt_llm, a folder of inflight_batcher_llm, a quoted command line "
        "of trtllm-serve (docker run included), a script or YAML with one, or a file of variables",
    )
    parser.add_argument("--kind", choices=sorted(IMPORTERS), help="whose options they are")
    parser.add_argument(
        "--engine", metavar="REPO", help="the model, where the sources name none or another"
    )
    add_truss_options(parser, config=False)
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="a new file (default: standard output)"
    )


def run(options: argparse.Namespace) -> int:
    """Write config.yaml, and on stderr the outcome of every option.

    Raises:
        SettingsError: a source cannot be read, or the result is not a valid configuration.
    """
    found = read_sources(options.sources, options.kind)
    content = read_config(options.truss, None)
    newest = newest_image()
    of_engine = found.kind in ("triton", "lmi")
    version = None if of_engine else HostInfo(image=newest.image).version_for()
    if found.kind == "triton":
        engine = engine_here(options.engine or _repository(found.convert(None)))
        if engine is not None:
            content |= _base(engine.base_image(None))
        version = HostInfo.from_config(content).version_for()
    imported = found.convert(version)
    if imported.kind == "checkpoint" and not of_engine:
        content |= _base(newest)
    if options.engine:
        name_model(imported, options.engine)
    return deliver(imported, found.ignored, content, options.output, found.origin)


def _base(image: BaseImage) -> dict[str, Any]:
    return {"base_image": image.section, "python_version": image.python}


def _repository(imported: ConversionResult) -> str:
    return str(imported.metadata.get("engine_repository") or "")


def name_model(imported: ConversionResult, repository: str) -> None:
    """Serve or build from another repository than the sources specify."""
    metadata = imported.metadata
    if imported.kind == "build":
        build = metadata.setdefault("build", {})
        build["checkpoint_repository"] = repository
        build.pop("checkpoint_revision", None)
    else:
        metadata["engine_repository"] = repository
        metadata.pop("engine_revision", None)


def deliver(
    imported: ConversionResult,
    ignored: Sequence[str],
    content: dict[str, Any],
    output: Path | None,
    origin: str,
) -> int:
    """Report the outcome of every option, validate the configuration and write it.

    Args:
        imported: the converted options.
        ignored: spellings overridden by another one of the same option.
        content: configuration to which they are added.
        output: a new file; None for standard output.
        origin: description of the sources.

    Raises:
        SettingsError: the result is not a valid configuration, or `output` exists or
            cannot be written.
    """
    report_options(imported.rows, ignored)
    build = imported.metadata.get("build", {})
    if "engine_repository" not in imported.metadata and "checkpoint_repository" not in build:
        raise SettingsError(
            f"{origin} name no model that can be read; name it with --engine org/name, or as a "
            "folder of the container."
        )
    content = {**content, **_fitted(imported, content)}
    settings, _ = load_configuration(
        {"model_metadata": imported.metadata}, HostInfo.from_config(content).version_for()
    )
    if output is not None and output.exists():
        raise SettingsError(f"--output {output} exists; name a new file.")
    consent = ""
    if settings.trust_remote_code:
        consent = consent_text(imported.metadata, f"by {origin}")
        echo(f"note: {consent}")
    text = comment(consent) + _document(content, imported, settings.world_size)
    if output is None:
        write(text)
        echo("next: save it as config.yaml of a Truss, then trtllm-truss check")
    else:
        with writing(output):
            output.write_text(text, encoding="utf-8")
        echo(f"wrote {output}; next: trtllm-truss check --config {shlex.quote(str(output))}")
    return 0


def _fitted(imported: ConversionResult, content: Mapping[str, Any]) -> dict[str, Any]:
    """Set the parallelism of a local engine; return matching keys of config.yaml."""
    metadata = imported.metadata
    build = metadata.get("build") or {}
    repository = _repository(imported) or str(build["checkpoint_repository"])
    engine = None if build else engine_here(repository)
    fitted: dict[str, Any] = {}
    if engine is not None and engine.fixed_split:
        fix_parallelism(metadata, engine)
        fitted = _base(engine.base_image(None))
    elif imported.kind == "engine" and is_folder(repository) and engine is None:
        echo(
            f"note: {repository} is not a folder here, so its engine was not read: set base_image, "
            "and tensor_parallelism to the engine's, as `trtllm-truss check` says beside it."
        )
    if content.get("model_name") == OWN_NAME:
        kind = BUILT if build else engine.title if engine else TITLES[imported.kind]
        fitted |= {
            "model_name": model_name(repository.removeprefix("package://")),
            "description": description(kind),
        }
    return fitted


def _document(config: dict[str, Any], imported: ConversionResult, ranks: int) -> str:
    """Return the Truss's configuration with new settings and one GPU per rank, as YAML."""
    document = merged(config, imported.config)
    resources = dict(document.get("resources") or {})
    if accelerator := resources.get("accelerator"):
        kind = str(accelerator).partition(":")[0]
        resources["accelerator"] = kind if ranks == 1 else f"{kind}:{ranks}"
    tags = (config.get("model_metadata") or {}).get("tags")
    document |= {
        "resources": resources,
        "model_metadata": {**({"tags": tags} if tags else {}), **imported.metadata},
    }
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def report_options(rows: Sequence[Row], ignored: Sequence[str]) -> None:
    """Write the outcome of every option to stderr."""
    for outcome in Outcome:
        some = [row for row in rows if row.outcome is outcome]
        if not some:
            continue
        echo(f"{outcome.value}:")
        for row in some:
            link = " →" if outcome is Outcome.MAPPED else ":"
            echo(f"  {row.spelling}={row.value}{link} {row.detail}")
    if ignored:
        echo(f"overridden, so ignored: {', '.join(ignored)}")
