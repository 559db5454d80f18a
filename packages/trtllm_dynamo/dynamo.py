"""`dynamo`: serve as a worker of NVIDIA Dynamo until a signal."""

from __future__ import annotations

import argparse
import logging
import os
import signal
from functools import partial

from trtllm_dynamo.configuration import check_configuration, is_on_the_network, local_addresses
from trtllm_truss.cli.common import add_truss_options, log_to_stderr
from trtllm_truss.configuration import load_configuration, read_config
from trtllm_truss.endpoints.application import start_service
from trtllm_truss.errors import SettingsError
from trtllm_truss.observability.status import ServiceStatus
from trtllm_truss.settings.loading import API_KEY_SECRET, MountedSecrets, read_environment

logger = logging.getLogger("trtllm_truss")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_truss_options(parser)
    parser.description = (
        "Start the engine and register it with NVIDIA Dynamo, which provides frontend and "
        "router. DYN_DISCOVERY_BACKEND and Dynamo's other variables configure the connection. "
        "Requires the extra `dynamo`."
    )
    parser.add_argument("--name", help="the model's name (default: model_name of config.yaml)")
    parser.add_argument(
        "--namespace",
        default=os.environ.get("DYN_NAMESPACE", "dynamo"),
        help="Dynamo's namespace (default: DYN_NAMESPACE, otherwise dynamo)",
    )
    parser.add_argument(
        "--component", default="backend", help="the component name shared by the model's workers"
    )
    parser.add_argument(
        "--tool-call-parser", metavar="NAME", help="the frontend's parser, by its name"
    )
    parser.add_argument(
        "--reasoning-parser", metavar="NAME", help="the frontend's parser, by its name"
    )
    parser.add_argument(
        "--kv-events",
        action="store_true",
        help="report KV cache blocks to the router, for checkpoints without adapters",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT.

    Raises:
        SettingsError: the settings are wrong, or the extra is not installed.
        StartupError: the engine cannot start, or Dynamo's runtime fails.
    """
    config = read_config(options.truss, options.config)
    environment = read_environment(MountedSecrets(config))
    has_key = bool(environment.api_key) or API_KEY_SECRET in (config.get("secrets") or {})
    check_configuration(*load_configuration(config), has_key=has_key)
    try:
        from trtllm_dynamo.worker import WorkerOptions, run_worker
    except ImportError as error:
        raise SettingsError(
            f"Dynamo's runtime cannot be imported ({error}); install the extra: pip install "
            "'trtllm-truss[dynamo]'."
        ) from error
    log_to_stderr()
    place = WorkerOptions(
        name=options.name or str(config.get("model_name") or "model"),
        namespace=options.namespace,
        component=options.component,
        tool_call_parser=options.tool_call_parser,
        reasoning_parser=options.reasoning_parser,
        kv_events=options.kv_events,
    )
    start = partial(
        start_service,
        config,
        lambda: environment,
        (options.truss / config.get("data_dir", "data")).resolve(),
        ServiceStatus.published(os.environ),
    )
    os.environ.update(local_addresses(os.environ))
    if is_on_the_network(os.environ):
        logger.warning(
            "the worker's port is open to the network, and Dynamo requires no key: admit only "
            "its frontends with a network policy, or set DYN_TCP_RPC_HOST to an address of "
            "this host"
        )
    for number in (signal.SIGTERM, signal.SIGINT):
        # Dynamo's runtime stops the worker gracefully, and calls the previous handler.
        signal.signal(number, lambda *_: None)
    run_worker(start, place)
    return 0
