"""`join`: run this host's ranks of an engine that spans several hosts, until a signal."""

from __future__ import annotations

import argparse

from trtllm_truss.cli.common import add_truss_options, log_to_stderr
from trtllm_truss.configuration import load_configuration, read_config
from trtllm_truss.serving.group import join
from trtllm_truss.settings.loading import read_environment


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
    content = read_config(options.truss, options.config)
    settings, _ = load_configuration(content)
    data_dir = options.truss / content.get("data_dir", "data")
    image = (content.get("base_image") or {}).get("image")
    try:
        join(settings, read_environment(), data_dir.resolve(), image)
    except SystemExit:  # SIGTERM
        return 0
    return 0
