"""Run a rank above 0 of a launcher's job, instead of the command that rank 0 runs."""

from __future__ import annotations

import argparse

from trtllm_truss.cli.common import log_to_stderr
from trtllm_truss.configuration import load_configuration, read_config
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.processes.mpi_job import Rank
from trtllm_truss.serving.rank import work
from trtllm_truss.settings.loading import MountedSecrets, read_environment


def run_rank(rank: Rank, options: argparse.Namespace) -> int:
    """Run the rank until rank 0 ends the job.

    Raises:
        SettingsError: the settings are wrong, or the engine has another number of ranks.
        StartupError: the engine is unusable here, or the rank has failed.
    """
    log_to_stderr()
    content = read_config(options.truss, options.config)
    settings, _ = load_configuration(content)
    environment = read_environment(MountedSecrets(content))
    data_dir = (options.truss / content.get("data_dir", "data")).resolve()
    work(settings, environment, data_dir, HostInfo.from_config(content).image, rank)
    return 0
