"""`publish`: upload a built engine to Hugging Face or S3."""

from __future__ import annotations

import argparse
from pathlib import Path

from trtllm_builder.publishing import publish, settings_block
from trtllm_truss.cli.build import find_job
from trtllm_truss.cli.common import add_truss_options, echo, write
from trtllm_truss.configuration import read_config
from trtllm_truss.engines.manifest import read_manifest
from trtllm_truss.errors import BuildError, SettingsError
from trtllm_truss.settings.loading import parse_settings, read_environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_truss_options(parser)
    parser.add_argument(
        "--engine",
        type=Path,
        metavar="DIR",
        help="the engine's folder (default: what `build` made for this configuration)",
    )
    parser.add_argument(
        "--to",
        metavar="REPOSITORY",
        help="org/name or s3://bucket/prefix (default: build.publish_to)",
    )


def run(options: argparse.Namespace) -> int:
    """Upload an engine and print the settings that serve it from there.

    Raises:
        SettingsError: the destination is missing.
        BuildError: the engine is not built, or it cannot be uploaded.
    """
    environment = read_environment()
    destination = options.to or _destination(options.truss, options.config)
    folder: Path | None = options.engine
    if folder is None:
        workspace = find_job(options.truss, options.config, environment).workspace
        if not workspace.is_complete:
            raise BuildError("this engine is not built yet; run `trtllm-truss build` first.")
        folder = workspace.engine
    commit = publish(folder, destination, environment.hf_access_token)
    manifest = read_manifest(folder)
    assert manifest is not None, "publish() refuses an engine without one"
    echo("published; to serve it, put this in config.yaml in place of build:")
    write(settings_block(manifest, destination, commit))
    return 0


def _destination(truss: Path, config: Path | None) -> str:
    build = parse_settings(read_config(truss, config)).build
    if build is None or build.publish_to is None:
        raise SettingsError(
            "the destination is missing; set model_metadata.build.publish_to, or use --to."
        )
    return build.publish_to
