"""`publish`: a built engine goes to Hugging Face or S3."""

from __future__ import annotations

from pathlib import Path

from trtllm_truss.builder.model_card import settings_block
from trtllm_truss.builder.publishing import publish as publish_engine
from trtllm_truss.cli.build import find_job
from trtllm_truss.cli.layout import read_config
from trtllm_truss.cli.terminal import tell
from trtllm_truss.engines.manifest import read_manifest
from trtllm_truss.errors import BuildError, SettingsError
from trtllm_truss.settings.loading import parse_settings, read_environment


def publish(truss: Path, config: Path | None, engine: Path | None, destination: str | None) -> int:
    """Uploads an engine and prints the settings that serve it from there.

    Args:
        truss: the Truss's folder.
        config: replaces its config.yaml.
        engine: the engine repository; None is the one that `build` made for this configuration.
        destination: where to; None is `build.publish_to`.

    Raises:
        SettingsError: nothing says where to.
        BuildError: there is no such engine, or it cannot be uploaded.
    """
    environment = read_environment()
    destination = destination or _destination(truss, config)
    folder = engine
    if folder is None:
        workspace = find_job(truss, config, environment).workspace
        if not workspace.is_complete:
            raise BuildError("this engine is not built yet; run `trtllm-truss build` first.")
        folder = workspace.engine
    commit = publish_engine(folder, destination, environment.hf_access_token)
    manifest = read_manifest(folder)
    assert manifest is not None, "an engine without one is not published"
    tell("published; this in config.yaml, in place of build, serves it:")
    print(settings_block(manifest, destination, commit), end="")
    return 0


def _destination(truss: Path, config: Path | None) -> str:
    build = parse_settings(read_config(truss, config)).build
    if build is None or build.publish_to is None:
        raise SettingsError(
            "nothing says where to publish; set model_metadata.build.publish_to, or use --to."
        )
    return build.publish_to
