"""Resolve the engine, render the repository, find tritonserver.

The engine's `config.json` is read and validated first, so that only a compatible engine with a
tokenizer is downloaded; the command `check` does the same. The Triton model repository is rendered
from settings and engine.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtllm_truss.artifacts.listing import Listing
from trtllm_truss.artifacts.open_repository import open_folder, open_repository
from trtllm_truss.engines.capacity import Capacity, free_after_weights, kv_cache_capacity
from trtllm_truss.engines.diagnostics import Diagnostic, Severity
from trtllm_truss.engines.engine import Engine
from trtllm_truss.engines.gpu_engine import GpuEngine
from trtllm_truss.engines.gpus import parse_accelerator
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.engines.kinds import (
    check_compatibility,
    inspect_engine,
    open_adapters,
    with_settings,
)
from trtllm_truss.errors import SettingsError, TritonError
from trtllm_truss.machine.describe import (
    Machine,
    check_jinja,
    check_machine,
    container_sentences,
    inspect_machine,
)
from trtllm_truss.machine.runtime import (
    BACKENDS_VARIABLE,
    TritonInstallation,
    assemble_backends,
    find_backends,
)
from trtllm_truss.processes.mpi_job import Rank
from trtllm_truss.releases import MODEL_NAME
from trtllm_truss.request_fields import SAMPLING
from trtllm_truss.serving.kernel_cache import key_of
from trtllm_truss.serving.repositories import (
    EngineRepository,
    TokenizerRepository,
    check_files,
    recorded_files,
)
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Serving, Settings
from trtllm_truss.triton.model_repository import (
    InstanceCounts,
    render_native_models,
    render_repository,
)
from trtllm_truss.triton.server.command import server_environment


@dataclass(frozen=True, slots=True)
class ResolvedEngine:
    """A downloaded and validated engine.

    Attributes:
        findings: warnings.
        capacity: KV cache capacity on the visible GPUs; None if unknown.
        listing: the files in its repository.
        adapters: folders of the LoRA adapters by name, in the order of the settings.
        unchecked: files whose contents are to be compared with their SHA-256 while serving.
    """

    engine: Engine
    tokenizer_folder: Path
    findings: tuple[Diagnostic, ...]
    capacity: Capacity | None
    listing: Listing
    adapters: Mapping[str, Path] = field(default_factory=dict)
    unchecked: Mapping[Path, str] = field(default_factory=dict)


def resolve_engine(
    settings: Settings,
    environment: Environment,
    host: HostInfo,
    built: Path | None = None,
    version: str | None = None,
    read_ahead: Callable[[Collection[Path]], None] = lambda files: None,
    rank: Rank | None = None,
    check_server: Callable[[Engine], None] = lambda engine: None,
) -> ResolvedEngine:
    """Validate the engine against this host and the settings; download it with its tokenizer.

    Each rank of a launcher's job downloads its own files only.

    Args:
        built: folder of the engine from `build`, if the settings specify none.
        version: version of TensorRT-LLM if known: the host's, or that of config.yaml's image.
        read_ahead: receives the local files as soon as the engine is known to be compatible.
        rank: this process's rank in a launcher's job.
        check_server: raises an error if no server here can run the engine; called before a
            download.

    Raises:
        ArtifactError: engine or tokenizer is missing or unreadable.
        SettingsError: the engine is not compatible with the host or the settings.
    """
    repository = open_engine(settings, environment, built)
    repositories = open_adapters(settings, environment)
    adapters = [each.adapter for each in repositories]
    described = repository.describe()
    ranks = None
    if described.is_described:
        if rank is not None:
            ranks = described.ranks_opened_by(rank.index)
        described = with_settings(described, settings, version, adapters, host.capability)
        _require_ranks(described, rank, host)
        described = described if ranks is None else described.held_for(ranks)
        _raise_errors(_diagnose(settings, described, host)[0])
        check_server(described)
    else:
        _require_ranks(described, rank, host)
    has_tokenizer = rank is None or rank.index == 0 or described.ranks_need_tokenizer(settings)
    wanted = [
        *repository.engine_paths(described, with_code=settings.trust_remote_code, ranks=ranks),
        *(own_tokenizer_paths(settings, repository) if has_tokenizer else ()),
    ]
    paths = list(dict.fromkeys(wanted))  # both read config.json
    read_ahead(repository.source.present(paths))
    repository.source.check_room(paths)
    tokenizer = open_tokenizer(settings, environment) if has_tokenizer else None
    findings = tokenizer.examine(described) if tokenizer else []
    with ThreadPoolExecutor(1) as aside:
        fetched = aside.submit(tokenizer.fetch) if tokenizer else None
        folder = repository.source.fetch(paths)
        tokenizer_folder = fetched.result() if fetched else None
    engine = with_settings(inspect_engine(folder), settings, version, adapters, host.capability)
    engine = engine if ranks is None else engine.held_for(ranks)
    is_mounted = repository.source.is_mounted
    if not is_mounted:
        check_files(engine, folder)
    own, capacity = _diagnose(settings, engine, host)
    _raise_errors(own)
    tokenizer_folder = tokenizer_folder or engine.tokenizer_folder
    folders = {each.adapter.name: each.fetch() for each in repositories}
    return ResolvedEngine(
        engine,
        tokenizer_folder,
        (*findings, *own),
        capacity,
        repository.source.listing(),
        folders,
        recorded_files(engine, folder) if is_mounted else {},
    )


def _require_ranks(engine: Engine, rank: Rank | None, host: HostInfo) -> None:
    """Compare a launcher's job with the engine's ranks."""
    if rank is None:
        return
    wanted = engine.world_size
    if rank.size != wanted:
        raise SettingsError(
            f"this process is rank {rank.index} of {rank.size}, but the engine has {wanted} "
            f"rank{'s' if wanted > 1 else ''} (tensor × pipeline parallelism); start as many "
            "processes, one for each GPU."
        )
    if engine.uses_gpus and host.gpus and len(host.gpus) < rank.each:
        raise SettingsError(
            f"{len(host.gpus)} of {rank.each} GPUs are visible to rank {rank.index}. "
            "TensorRT-LLM selects the GPU by the rank's number, so each rank must see all GPUs "
            "of its host; remove --gpus-per-task and --gpu-bind, or similar limits in "
            "CUDA_VISIBLE_DEVICES."
        )


def supervised_limits(serving: Serving, engine: Engine, *, restarts: bool = True) -> Serving:
    """Return the supervisor's limits; a checkpoint's start may take longer, depending on its size.

    Args:
        restarts: False for a rank of a launcher's job, which cannot be restarted.
    """
    seconds = serving.start_timeout_s + engine.extra_start_s
    limit = {} if restarts else {"restart_limit": 0}
    return serving.model_copy(update={"start_timeout_s": seconds, **limit})


def open_engine(
    settings: Settings, environment: Environment, built: Path | None = None
) -> EngineRepository:
    """List the engine repository of the settings without downloading anything.

    Raises:
        ArtifactError: it is unreadable or has no engine.
        SettingsError: the settings specify none, and none was built.
    """
    if settings.engine_repository is not None:
        source = open_repository(
            settings.engine_repository,
            settings.engine_revision,
            setting="engine_repository",
            token=environment.hf_access_token,
            mounts=settings.mounts,
        )
    elif built is not None:
        source = open_folder(built, setting="build")
    else:
        raise SettingsError(
            "config.yaml: model_metadata.engine_repository is not set; set it, or build the engine "
            "with `trtllm-truss build`."
        )
    return EngineRepository(source)


def open_tokenizer(settings: Settings, environment: Environment) -> TokenizerRepository | None:
    """Open the tokenizer's repository if it is not the engine's, without sending a request yet.

    Raises:
        ArtifactError: the folder or package does not exist.
    """
    if settings.tokenizer_repository is None:
        return None
    source = open_repository(
        settings.tokenizer_repository,
        settings.tokenizer_revision,
        setting="tokenizer_repository",
        token=environment.hf_access_token,
        mounts=settings.mounts,
    )
    return TokenizerRepository(
        source, settings.tokenizer_repository, trust_remote_code=settings.trust_remote_code
    )


def own_tokenizer_paths(settings: Settings, repository: EngineRepository) -> list[str]:
    """Return the tokenizer's files in the engine repository, if `tokenizer_repository` is unset.

    Raises:
        ArtifactError: the tokenizer is missing or not trusted.
    """
    if settings.tokenizer_repository is not None:
        return []
    return repository.tokenizer_paths(trust_remote_code=settings.trust_remote_code)


def host_info(machine: Machine) -> HostInfo:
    """Return the host facts that an engine is compared with; without a GPU, `gpus` is unknown."""
    return HostInfo(
        gpus=machine.gpus.devices or None,
        runtime_version=machine.runtime.installed_version,
        driver_version=machine.cuda.driver_version,
        cuda_version=machine.cuda.version,
        driver_fits=machine.cuda.driver_fits,
    )


def server_problem(
    machine: Machine, engine: Engine, image: str | None, environment: Environment
) -> str:
    """Return why no Triton on this machine runs the engine, with the remedy; empty if one does.

    Args:
        image: `base_image.image` of config.yaml.

    Raises:
        TritonError: ``TRITON_BACKEND_DIRECTORY`` is not a folder.
    """
    triton = machine.triton
    if not isinstance(engine, GpuEngine):
        return "" if triton else machine.triton_problem
    remedy = f"This engine runs in the image {engine.image_to_run(image)} (docs/docker.md)."
    if triton is None:
        return f"{machine.triton_problem} {remedy}"
    if engine.backend not in find_backends(triton, environment.variables):
        return (
            f"The Triton here ({triton.executable}) has no backend {engine.backend}. {remedy} "
            f"Elsewhere, set {BACKENDS_VARIABLE} to a folder that holds the backend."
        )
    return ""


def log_machine(machine: Machine, engine: Engine) -> None:
    """Log Python, driver, CUDA and compatibility mode, and any problems."""
    for sentence in container_sentences(machine.python, machine.runtime, machine.cuda):
        logger.info("%s", sentence)
    for finding in check_machine(machine.cuda, machine.limits, engine.world_size):
        logger.warning("%s", finding.message)


def cache_capacity(settings: Settings, engine: Engine, host: HostInfo) -> Capacity | None:
    """Estimate the KV cache capacity on the host's GPUs; None if unknown.

    Without a visible GPU, use config.yaml's GPUs with all of their memory.

    Raises:
        SettingsError: a value under `runtime` has the wrong type.
    """
    shape, weights_bytes = engine.cache_shape, engine.largest_rank_bytes
    free_bytes = _free_bytes(host)
    if free_bytes is None or shape is None or weights_bytes is None:
        return None
    knobs = engine.cache_knobs(settings.runtime)
    rest = free_after_weights(free_bytes, weights_bytes)
    return kv_cache_capacity(shape, knobs, rest - engine.reserved_bytes, engine.late_bytes)


def _free_bytes(host: HostInfo) -> int | None:
    if host.gpus:
        return min(gpu.free_bytes for gpu in host.gpus)
    request = parse_accelerator(host.accelerator) if host.accelerator else None
    accelerator = request.accelerator if request else None
    return accelerator.memory_bytes if accelerator else None


def _diagnose(
    settings: Settings, engine: Engine, host: HostInfo
) -> tuple[list[Diagnostic], Capacity | None]:
    findings = check_compatibility(settings, engine, host)
    capacity = cache_capacity(settings, engine, host)
    return [*findings, *(capacity.diagnostics if capacity else ())], capacity


def _raise_errors(findings: Sequence[Diagnostic]) -> None:
    errors = [finding.message for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise SettingsError(" ".join(errors))


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

    With `guided_decoding_backend`, the vocabulary is written next to `config.pbtxt`, unless
    `xgrammar_tokenizer_info_path` is set.

    Args:
        settings: the operator's settings; parameters fixed by the engine are filled in.
        engine: its folder is referenced, not copied; a checkpoint's without code, unless that is
            trusted.
        data_dir: the Truss's data folder, which contains the template.
        tensorrt_llm_version: version of the runtime, which determines the names of tensors and
            parameters.
        adapters: folders of a checkpoint's LoRA adapters by name, numbered from 1.

    Raises:
        SettingsError: `runtime` does not match the engine.
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
            refused={
                row.name: sentence for row in SAMPLING if (sentence := engine.why_refused(row.name))
            },
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
        model,
        backend=engine.backend,
        max_batch_size=batch,
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
    `tokenizer_str`, the `tokenizer.json`; `stop_token_ids`, the EOS ids. Source:
    `examples/generate_xgrammar_tokenizer_info.py` in NVIDIA/TensorRT-LLM (1.0).

    Args:
        trust_remote_code: run tokenizers that contain Python code.

    Raises:
        ArtifactError: the tokenizer is unreadable.
    """
    from trtllm_truss.text.tokenizer import read_parts

    _, parts = read_parts(tokenizer_dir, trust_remote_code=trust_remote_code)
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
    """A server for the engine on this host.

    Attributes:
        backends: the one folder where it looks for backends.
    """

    installation: TritonInstallation
    backends: Path
    variables: dict[str, str]


@dataclass(frozen=True, slots=True)
class PreparedEngine:
    """An engine on this host, downloaded and validated.

    Attributes:
        host: the machine, as compared with the engine.
        version: version of TensorRT-LLM, which determines the names of tensors and parameters.
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

    def reporting_kv_events(self, address: Path) -> PreparedEngine:
        """Return the engine with KV cache events sent to a Unix socket.

        Raises:
            SettingsError: the engine cannot report events.
        """
        engine = self.engine.reporting_kv_events(address)
        return replace(self, resolved=replace(self.resolved, engine=engine))

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
        """The key of everything that the engine's kernels and tactics depend on."""
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

    def server(self, run_folder: Path, *, in_job: bool) -> PreparedServer:
        """Find Triton and prepare its backends and environment.

        Args:
            in_job: this process is a rank of a launcher's job.

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
                spawns=engine.spawns_ranks and not in_job,
            ),
        )


def prepare(
    settings: Settings,
    environment: Environment,
    image: str | None,
    *,
    read_ahead: Callable[[Collection[Path]], None],
    rank: Rank | None = None,
) -> PreparedEngine:
    """Validate and download the engine; build it first if the settings specify no repository.

    Args:
        image: `base_image.image` of config.yaml.
        read_ahead: receives files of the engine (`resolve_engine`).
        rank: this process's rank in a launcher's job.

    Raises:
        StartupError: the engine is unusable here.
    """
    _raise_errors([*check_jinja()])
    machine = inspect_machine(environment.variables, image)
    host = host_info(machine)
    in_image = replace(host, image=image)
    built = None
    if settings.engine_repository is None:
        from trtllm_builder.run import ensure_engine

        built = ensure_engine(settings, environment, host)
    known = in_image.known_version

    def check_server(engine: Engine) -> None:
        if problem := server_problem(machine, engine, image, environment):
            raise TritonError(problem)

    resolved = resolve_engine(
        settings, environment, host, built, known, read_ahead, rank, check_server
    )
    if resolved.capacity is not None:
        logger.info("%s", resolved.capacity.summary)
    for finding in resolved.findings:
        logger.warning("%s", finding.message)
    if resolved.engine.uses_gpus:
        log_machine(machine, resolved.engine)
    version = in_image.version_for(resolved.engine.built_version)
    return PreparedEngine(settings, environment, machine, in_image, resolved, version)
