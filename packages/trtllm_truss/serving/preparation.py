"""The part of a start that every host of an engine has: resolve it, render it, find its server.

The Triton model repository is rendered from settings and engine.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.errors import TritonError
from trtllm_truss.machine.describe import Machine, inspect_machine
from trtllm_truss.machine.runtime import TritonInstallation, assemble_backends
from trtllm_truss.mpi_job import Rank
from trtllm_truss.releases import MODEL_NAME
from trtllm_truss.serving.kernel_cache import key_of
from trtllm_truss.serving.preflight import ResolvedEngine, host_info, log_machine, resolve_engine
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings
from trtllm_truss.triton.model_repository import (
    InstanceCounts,
    render_native_models,
    render_repository,
)
from trtllm_truss.triton.server.command import server_environment

_TEMPLATE = "triton_model_repository"
_INFO_FILE = "xgrammar_tokenizer_info.json"


def render_engine(
    settings: Settings,
    engine: Engine,
    data_dir: Path,
    destination: Path,
    tensorrt_llm_version: str,
    tokenizer_dir: Path,
    adapters: Mapping[str, Path],
) -> Path:
    """Write the model repository of one engine and return its folder.

    With `guided_decoding_backend` the vocabulary is written next to `config.pbtxt`, unless
    `xgrammar_tokenizer_info_path` names a file.

    Args:
        settings: the operator's settings; parameters fixed by the engine are filled in.
        engine: its folder is referenced, not copied; a checkpoint's without its code, unless that
            is trusted.
        data_dir: the Truss's data folder, which contains the template.
        destination: folder of the repository.
        tensorrt_llm_version: version of the runtime, which decides the names of tensors and
            parameters.
        adapters: folders of a checkpoint's LoRA adapters by name, numbered from 1.

    Raises:
        SettingsError: `runtime` does not fit the engine.
        ArtifactError: the tokenizer is unreadable.
    """
    batch = engine.batch_size(settings)
    if settings.serving.triton_native:
        render_native_models(
            data_dir / _TEMPLATE,
            destination,
            tokenizer_dir=tokenizer_dir,
            trust_remote_code=settings.trust_remote_code,
            max_batch_size=batch,
            counts=InstanceCounts(
                settings.preprocessing_instance_count,
                settings.postprocessing_instance_count,
                settings.bls_instance_count,
            ),
            tensorrt_llm_version=tensorrt_llm_version,
            decoupled=settings.serving.triton_decoupled_mode,
        )
    info = tokenizer_info_file(settings, engine, destination)
    model = engine.model_config(
        settings,
        tensorrt_llm_version,
        tokenizer_dir=tokenizer_dir,
        tokenizer_info=info,
        adapters=adapters,
    )
    render_repository(
        data_dir / _TEMPLATE,
        destination,
        engine_dir=model.engine_dir,
        backend=engine.backend,
        max_batch_size=batch,
        parameters=model.parameters,
        of_executor=model.of_executor,
        inputs=model.inputs,
        outputs=model.outputs,
        tensorrt_llm_version=tensorrt_llm_version,
        instance_count=engine.instance_count(settings),
    )
    if info is not None and not settings.runtime.xgrammar_tokenizer_info_path:
        is_trusted = settings.trust_remote_code
        write_tokenizer_info(tokenizer_dir, info, trust_remote_code=is_trusted)
    return destination


def tokenizer_info_file(settings: Settings, engine: Engine, repository: Path) -> Path | None:
    """Return the path of TensorRT-LLM's vocabulary file; None if no guide needs it."""
    if not engine.reads_tokenizer_info(settings):
        return None
    named = settings.runtime.xgrammar_tokenizer_info_path
    return Path(named) if named else repository.absolute() / MODEL_NAME / _INFO_FILE


def write_tokenizer_info(
    tokenizer_dir: Path, file: Path, *, trust_remote_code: bool = False
) -> None:
    """Write the file of `xgrammar_tokenizer_info_path` for the C++ backend.

    Keys: `encoded_vocab`, tokens by id in the tokenizer's spelling, empty for unused ids;
    `tokenizer_str`, the `tokenizer.json`; `stop_token_ids`, the ids that end an answer. Source:
    `examples/generate_xgrammar_tokenizer_info.py` in NVIDIA/TensorRT-LLM (1.0).

    Args:
        trust_remote_code: run tokenizers that contain Python code.

    Raises:
        ArtifactError: the tokenizer is unreadable.
    """
    from trtllm_truss.text.tokenizer_files import read_tokenizer_folder

    parts = read_tokenizer_folder(tokenizer_dir, trust_remote_code=trust_remote_code)
    ids = parts.backend.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(ids.values()) + 1)
    for token, token_id in ids.items():
        tokens[token_id] = token
    info = {
        "encoded_vocab": tokens,
        "tokenizer_str": parts.backend.to_str(),
        "stop_token_ids": list(parts.eos_ids),
    }
    file.write_text(json.dumps(info), encoding="utf-8")


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedServer:
    """A server of the engine on this host.

    Attributes:
        backends: the one folder in which it looks for backends.
    """

    installation: TritonInstallation
    backends: Path
    variables: dict[str, str]


@dataclass(frozen=True, slots=True)
class PreparedEngine:
    """An engine on this host, downloaded and validated.

    Attributes:
        host: the machine, as an engine is compared with it.
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
        chosen = [
            settings.tensor_parallelism,
            settings.pipeline_parallelism,
            settings.trust_remote_code,  # a checkpoint's code may have compiled them
            settings.runtime,
        ]
        return key_of([versions, gpus, resolved.listing.commit, files, chosen])

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
    rank: Rank | None = None,
) -> PreparedEngine:
    """Validate and download the engine; build it first if the settings name no repository.

    Args:
        image: `base_image.image` of config.yaml.
        index: the place of this host among several; only the first builds.
        read_ahead: receives files of the engine (`resolve_engine`).
        rank: this process's in a launcher's job, in place of `index`.

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
    resolved = resolve_engine(settings, environment, host, built, known, index, read_ahead, rank)
    if resolved.capacity is not None:
        logger.info("%s", resolved.capacity.summary)
    for finding in resolved.findings:
        logger.warning("%s", finding.message)
    if resolved.engine.uses_gpus:
        log_machine(machine, resolved.engine)
    version = in_image.version_for(resolved.engine.built_version)
    return PreparedEngine(settings, environment, machine, in_image, resolved, version)
