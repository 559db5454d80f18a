"""`join`: run this host's ranks of an engine that spans several hosts, until a signal.

Also the part of `serve` and `dynamo` for the other ranks where a launcher has started the ranks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from trtllm_truss.cli.common import add_truss_options, log_to_stderr
from trtllm_truss.configuration import load_configuration, read_config
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.mpi_job import Rank
from trtllm_truss.serving.group import join, work
from trtllm_truss.settings.loading import Environment, MountedSecrets, read_environment
from trtllm_truss.settings.model import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_truss_options(parser)
    parser.description = (
        "Run on every host of `nodes` but the first, whose `serve` is the leader. Wait for the "
        "leader, start the ranks it asks for, and end them when it is gone. The secret group_key "
        "(TRUSS_SECRET_group_key) must be the leader's."
    )


def run(options: argparse.Namespace) -> int:
    """Stay in the group until SIGTERM or SIGINT; the ranks of this host end first.

    Raises:
        SettingsError: the settings or the key are wrong, or this host is not in the group.
        StartupError: the engine is unusable here, or the leader refused this host.
    """
    log_to_stderr()
    settings, environment, data_dir, image = _read(options)
    try:
        join(settings, environment, data_dir, image)
    except SystemExit:  # SIGTERM
        return 0
    return 0


def run_rank(rank: Rank, options: argparse.Namespace) -> int:
    """Be a rank above 0 of a launcher's job, for a command that rank 0 runs.

    Raises:
        SettingsError: the settings are wrong, or the engine has another number of ranks.
        StartupError: the engine is unusable here, or the rank has failed.
    """
    log_to_stderr()
    settings, environment, data_dir, image = _read(options, of_container=True)
    work(settings, environment, data_dir, image, rank)
    return 0


def _read(
    options: argparse.Namespace, *, of_container: bool = False
) -> tuple[Settings, Environment, Path, str | None]:
    content = read_config(options.truss, options.config)
    settings, _ = load_configuration(content)
    data_dir = (options.truss / content.get("data_dir", "data")).resolve()
    environment = read_environment(MountedSecrets(content) if of_container else None)
    return settings, environment, data_dir, HostInfo.from_config(content).image
