"""`render`: write the Triton model repository of `serve`, for inspection or use elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path

from trtllm_truss.cli.common import add_truss_options, echo, require_empty, writing
from trtllm_truss.configuration import load_configuration, read_config
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import check_settings, inspect_engine, open_adapters, with_settings
from trtllm_truss.machine.describe import inspect_machine
from trtllm_truss.serving.preparation import (
    host_info,
    open_engine,
    open_tokenizer,
    own_tokenizer_paths,
    render_engine,
)
from trtllm_truss.settings.loading import read_environment, require_one_builder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_truss_options(parser)
    parser.add_argument(
        "--engine", type=Path, metavar="DIR", help="the engine's folder (default: the settings')"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="a new or empty folder"
    )


def run(options: argparse.Namespace) -> int:
    """Write the model repository of one engine.

    Raises:
        SettingsError: the settings are wrong, or `--output` is not empty or cannot be
            written.
        ArtifactError: the engine or the tokenizer cannot be fetched.
    """
    content = read_config(options.truss, options.config)
    settings, _ = load_configuration(content)
    require_empty(options.output)
    environment = read_environment()
    require_one_builder(settings)
    folder = options.engine
    if folder is None:
        repository = open_engine(settings, environment)
        with_code = settings.trust_remote_code
        paths = repository.engine_paths(repository.describe(), with_code=with_code)
        folder = repository.source.fetch([*paths, *own_tokenizer_paths(settings, repository)])
    adapters = open_adapters(settings, environment)
    image = HostInfo.from_config(content).image
    machine = inspect_machine(environment.variables, image)
    here = HostInfo.from_config(content, host_info(machine))
    described = inspect_engine(folder.resolve())
    applied = [each.adapter for each in adapters]
    engine = with_settings(described, settings, here.known_version, applied, here.capability)
    tokenizer = open_tokenizer(settings, environment)
    tokenizer_dir = tokenizer.fetch() if tokenizer else engine.tokenizer_folder
    data_dir = options.truss / content.get("data_dir", "data")
    folders = {each.adapter.name: each.fetch() for each in adapters}
    version = here.version_for(engine.built_version)
    check_settings(settings, version)
    output = options.output
    with writing(output):
        output.mkdir(parents=True, exist_ok=True)
    render_engine(settings, engine, data_dir, output, version, tokenizer_dir, folders)
    echo(f"wrote the model repository for {folder} to {options.output}")
    return 0
