"""`build`: build an engine from the checkpoint in `model_metadata.build`."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from trtllm_builder.jobs import Job, prepare_build
from trtllm_builder.run import build_engine
from trtllm_truss.cli.common import add_truss_options, echo, require_empty, write, writing
from trtllm_truss.configuration import load_configuration, read_config
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.machine.describe import inspect_machine
from trtllm_truss.serving.preparation import host_info
from trtllm_truss.settings.loading import Environment, read_environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_truss_options(parser)
    parser.add_argument(
        "--plan", action="store_true", help="print the commands and their sizes, run nothing"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="a new or empty folder for the engine (default: in the cache)",
    )


def run(options: argparse.Namespace) -> int:
    """Build the engine and print its folder, or with `--plan` print the commands.

    Raises:
        SettingsError: the settings cannot be built, or `--output` is not empty or cannot be
            written.
        StartupError: the build failed.
    """
    environment = read_environment()
    job = find_job(options.truss, options.config, environment)
    if options.plan:
        write(str(job.plan))
        echo(*job.estimate.sentences, f"build key: {job.key}")
        return 0
    if options.output is not None:
        require_empty(options.output)
        with writing(options.output):  # before the hours of a build, not after them
            options.output.mkdir(parents=True, exist_ok=True)
    echo(*job.estimate.sentences)
    engine = build_engine(job, environment.variables, echo)
    if options.output is not None:
        engine = Path(shutil.copytree(engine, options.output, dirs_exist_ok=True))
    write(f"{engine}\n")
    return 0


def find_job(truss: Path, config: Path | None, environment: Environment) -> Job:
    """Prepare the build of a configuration.

    Raises:
        StartupError: the configuration has no build, or it cannot be built.
    """
    content = read_config(truss, config)
    here = host_info(inspect_machine(environment.variables))
    host = HostInfo.from_config(content, here)
    settings = load_configuration(content).settings
    return prepare_build(settings, host, environment.hf_access_token)
