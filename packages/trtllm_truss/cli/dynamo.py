"""`dynamo`: serve as a worker of NVIDIA Dynamo, until a signal."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal

from trtllm_truss.cli.common import add_truss_options, log_to_stderr
from trtllm_truss.configuration import load_configuration, read_config
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.errors import SettingsError
from trtllm_truss.serving.service import Service
from trtllm_truss.settings.loading import read_environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_truss_options(parser)
    parser.description = (
        "Start the engine and register it with NVIDIA Dynamo, whose frontend and router come from "
        "elsewhere. DYN_DISCOVERY_BACKEND and Dynamo's other variables say where they are. "
        "Requires the extra `dynamo`."
    )
    parser.add_argument("--name", help="the model's name (default: model_name of config.yaml)")
    parser.add_argument(
        "--namespace",
        default=os.environ.get("DYN_NAMESPACE", "dynamo"),
        help="Dynamo's namespace (default: DYN_NAMESPACE, else dynamo)",
    )
    parser.add_argument(
        "--component", default="backend", help="the name that the model's workers share"
    )
    parser.add_argument("--tool-call-parser", metavar="NAME", help="the frontend's, by its name")
    parser.add_argument("--reasoning-parser", metavar="NAME", help="the frontend's, by its name")


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT.

    Raises:
        SettingsError: the settings are wrong, or the extra is not installed.
        StartupError: the engine cannot start.
    """
    try:
        from trtllm_truss.dynamo.worker import WorkerOptions, serve_worker
    except ImportError as error:
        raise SettingsError(
            f"the runtime of Dynamo cannot be imported ({error}); install the extra: "
            "pip install 'trtllm-truss[dynamo]'."
        ) from error
    log_to_stderr()
    content = read_config(options.truss, options.config)
    settings, defaults = load_configuration(content)
    data_dir = options.truss / content.get("data_dir", "data")
    image = HostInfo.from_config(content).image
    service = Service(settings, read_environment(), data_dir.resolve(), image)
    place = WorkerOptions(
        name=options.name or str(content.get("model_name") or "model"),
        namespace=options.namespace,
        component=options.component,
        tool_call_parser=options.tool_call_parser,
        reasoning_parser=options.reasoning_parser,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        # Dynamo's runtime ends the worker in order, and calls the handler that was there before.
        signal.signal(number, lambda *_: None)
    asyncio.run(serve_worker(service, defaults, place))
    return 0
