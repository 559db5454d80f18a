"""The part of a start that every host of an engine has: resolve it, render it, find its server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.errors import TritonError
from trtllm_truss.machine.describe import Machine, inspect_machine
from trtllm_truss.machine.triton import TritonInstallation, assemble_backends
from trtllm_truss.serving.kernel_cache import key_of
from trtllm_truss.serving.preflight import ResolvedEngine, host_info, log_machine, resolve_engine
from trtllm_truss.serving.rendering import render_engine
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings
from trtllm_truss.triton.server.command import server_environment

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedServer:
    """A server of the engine on this host.

    Attributes:
        installation: of Triton.
        backends: the one folder in which it looks for backends.
        variables: its environment.
    """

    installation: TritonInstallation
    backends: Path
    variables: dict[str, str]


@dataclass(frozen=True, slots=True)
class PreparedEngine:
    """An engine on this host, downloaded and validated.

    Attributes:
        settings: the operator's settings.
        environment: secrets and variables.
        machine: this one.
        host: the same, as an engine is compared with it.
        resolved: the engine.
        version: of TensorRT-LLM, which decides the names of tensors and parameters.
    """

    settings: Settings
    environment: Environment
    machine: Machine
    host: HostInfo
    resolved: ResolvedEngine
    version: str

    @property
    def engine(self) -> Engine:
        return self.resolved.engine

    def render(self, data_dir: Path, destination: Path) -> Path:
        """Write the model repository and return its folder."""
        return render_engine(
            self.settings,
            self.engine,
            data_dir,
            destination,
            self.version,
            self.resolved.tokenizer_folder,
            self.resolved.adapters,
        )

    @property
    def kernels(self) -> str:
        """The key of what the engine's kernels and tactics depend on."""
        host, resolved, settings = self.host, self.resolved, self.settings
        gpus = [(gpu.name, gpu.compute_capability) for gpu in host.gpus or ()]
        versions = self.version, host.image, host.runtime_version, host.driver_version
        files = [(file.path, file.size, file.blob_name) for file in resolved.listing.files]
        split = settings.tensor_parallelism, settings.pipeline_parallelism
        return key_of([versions, gpus, resolved.listing.commit, files, split, settings.runtime])

    def server(self, run_folder: Path, *, in_group: bool) -> PreparedServer:
        """Find Triton and assemble its backends and its environment.

        Args:
            run_folder: of this start.
            in_group: several hosts share the engine.

        Raises:
            TritonError: Triton is not installed.
        """
        installation, variables = self.machine.triton, self.environment.variables
        if installation is None:
            raise TritonError(self.machine.triton_problem)
        engine = self.engine
        return PreparedServer(
            installation,
            assemble_backends(installation, run_folder / "backends", variables),
            server_environment(
                variables,
                installation,
                self.settings.serving.pass_environment,
                python=self.machine.runtime.python if engine.in_python_of_runtime else None,
                library_paths=self.machine.cuda.library_paths,
                huge_pages=engine.huge_pages,
                spawns=engine.spawns_ranks and not in_group,
            ),
        )


def prepare(
    settings: Settings,
    environment: Environment,
    image: str | None,
    index: int = 0,
    *,
    read_ahead: Callable[[Collection[Path]], None],
) -> PreparedEngine:
    """Validate and download the engine; build it first if the settings name no repository.

    Args:
        settings: the operator's settings.
        environment: secrets and variables.
        image: `base_image.image` of config.yaml.
        index: the place of this host among several; only the first builds.
        read_ahead: receives files of the engine (`resolve_engine`).

    Raises:
        StartupError: the engine is unusable here.
    """
    machine = inspect_machine(environment.variables, image)
    host = host_info(machine)
    in_image = replace(host, image=image)
    built = None
    if settings.engine_repository is None and index == 0:
        from trtllm_truss.builder.run import ensure_engine

        built = ensure_engine(settings, environment, host)
    known = in_image.known_version
    resolved = resolve_engine(settings, environment, host, built, known, index, read_ahead)
    if resolved.capacity is not None:
        logger.info("%s", resolved.capacity.summary)
    for finding in resolved.findings:
        logger.warning("%s", finding.message)
    if resolved.engine.uses_gpus:
        log_machine(machine, resolved.engine)
    version = in_image.version_for(resolved.engine.built_version)
    return PreparedEngine(settings, environment, machine, in_image, resolved, version)
