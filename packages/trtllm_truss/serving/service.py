"""Start an engine from the settings, keep it running, stop it."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_truss.engines.deployment import Deployment
from trtllm_truss.errors import EngineUnavailable, SettingsError, TritonError
from trtllm_truss.guides.validator import guide_check_for
from trtllm_truss.inference.heartbeat import EngineHeartbeat
from trtllm_truss.observability.metrics import Load, Metrics, exposed
from trtllm_truss.observability.status import ServiceStatus
from trtllm_truss.processes.begin import begin_s
from trtllm_truss.processes.child import child_environment, end_everything, sweep, temporary_folder
from trtllm_truss.processes.limits import raise_file_limit
from trtllm_truss.processes.mpi_job import job_variables, read_rank
from trtllm_truss.processes.secret_variables import hide_secrets
from trtllm_truss.serving.kernel_cache import cache_variables, remove_damaged_tactics
from trtllm_truss.serving.memory import settle_memory
from trtllm_truss.serving.mounted_files import MountedFiles
from trtllm_truss.serving.preparation import (
    PreparedEngine,
    prepare,
    supervised_limits,
    tokenizer_info_file,
)
from trtllm_truss.serving.read_ahead import ReadAhead
from trtllm_truss.serving.startup_log import StartupLog
from trtllm_truss.serving.supervisor import Supervisor
from trtllm_truss.settings.loading import Environment, resolve_hosts
from trtllm_truss.settings.model import Serving, Settings
from trtllm_truss.triton.server.command import launcher
from trtllm_truss.triton.server.process import ServerProcess

if TYPE_CHECKING:
    from trtllm_truss.engines.engine import Engine
    from trtllm_truss.inference.pipeline import RequestPipeline
    from trtllm_truss.observability.tracing import Tracing
    from trtllm_truss.text.tokenizer import TextTokenizer
    from trtllm_truss.triton.client.client import Trial

logger = logging.getLogger(__name__)
_triton_log = logging.getLogger("triton")

_GUIDES_LIMIT_S = 60.0
"""Time limit for warming up the guide checker, once everything else is ready.

The first guide waits for the remaining time.
"""

_SWITCH_S = 0.001
"""How long the event loop waits for the interpreter's lock while a thread runs a template, after
each of its system calls. With Python's 5 ms, a request of twenty calls waited 0.1 s."""


@dataclass(frozen=True, slots=True)
class _Running:
    supervisor: Supervisor
    pipeline: RequestPipeline
    mounted: MountedFiles


class Service:
    """One engine behind one Triton. `start` and `stop` are thread-safe.

    Args:
        data_dir: the Truss's data folder, which contains the model repository's template.
        image: `base_image.image` of config.yaml.
        model_name: name in config.yaml, for metrics and for responses to requests without one.
        is_traced: export spans of calls (`runtime.enable_tracing_data` of config.yaml).
        kv_events: Unix socket for events of the engine's KV cache; None for none.
        owns_process: see `start_service`.

    Attributes:
        metrics: metrics over all starts.
        tracing: starts the traces of calls; None without tracing.
    """

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        data_dir: Path,
        image: str | None = None,
        status: ServiceStatus | None = None,
        *,
        model_name: str = "",
        is_traced: bool = False,
        kv_events: Path | None = None,
        owns_process: bool = False,
    ) -> None:
        self._owns_process = owns_process
        self.model_name = model_name or "model"
        self._status = status or ServiceStatus()
        self._settings = resolve_hosts(settings, environment)
        self._rank = read_rank(environment.variables)
        self._environment = environment
        self._data_dir = data_dir
        self._image = image
        self._kv_events = kv_events
        self._lock = threading.Lock()
        self._resources = ExitStack()
        self._running: _Running | None = None
        self.metrics = Metrics(
            engine_up=self._engine_answers,
            load=self._load,
            adapters=tuple(self._settings.lora_adapters),
            build={"image": image or "", "model": model_name},
            mounted=lambda: self._running.mounted if self._running else None,
            restarts=lambda: self._status.current.restarts,
        )
        self.tracing = _open_tracing(environment) if is_traced else None

    @property
    def limits(self) -> Serving:
        return self._settings.serving

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """Names of LoRA adapters that a request may use as its model."""
        return tuple(self._settings.lora_adapters)

    @property
    def pipeline(self) -> RequestPipeline:
        """Return the objects that serve requests with the running engine.

        Raises:
            EngineUnavailable: the engine was not started.
        """
        if self._running is None:
            raise EngineUnavailable("the engine was not started.")
        return self._running.pipeline

    def is_healthy(self) -> bool:
        """Return True if the engine responds and none of its mounted files was found to differ."""
        running = self._running
        return running is not None and self._engine_answers() and not running.mounted.differing

    def _engine_answers(self) -> bool:
        return self._running is not None and self._running.supervisor.is_healthy

    def start(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Start the engine and return once it generates.

        `meanwhile` runs at the same time, in a thread.

        Raises:
            StartupError: the engine cannot start; the message gives the reason.
        """
        if self._rank is not None and self._rank.index:
            raise SettingsError(
                f"this process is rank {self._rank.index} of {self._rank.size}, and rank 0 "
                "serves; start every rank with `trtllm-truss serve`, in a container with "
                "`/usr/bin/python3 -m trtllm_truss serve --truss /app`, instead of Truss's "
                "server."
            )
        with self._lock:
            self._stop()
            self._status.starting()
            try:
                self._start(meanwhile)
            except BaseException:
                self._stop()
                raise

    def stop(self) -> None:
        """Stop Triton and all its processes; idempotent."""
        with self._lock:
            self._stop()

    def _start(self, meanwhile: Callable[[], object]) -> None:
        raise_file_limit()
        sys.setswitchinterval(_SWITCH_S)
        sweep()
        began_s = begin_s(self._environment.variables) if self._owns_process else None
        log = StartupLog(4, self._status, began_s)
        ahead = self._resources.enter_context(closing(ReadAhead()))
        with log.phase("engine") as details:
            prepared = prepare(
                self._settings,
                self._environment,
                self._image,
                read_ahead=ahead.begin,
                rank=self._rank,
            )
            if self._kv_events is not None:
                prepared = prepared.reporting_kv_events(self._kv_events)
            resolved, engine = prepared.resolved, prepared.engine
            details.append(f"{engine.backend}, context of {engine.max_sequence_tokens} tokens")
        with log.phase("triton model repository") as details:
            run_folder = self._resources.enter_context(temporary_folder())
            repository = prepared.render(self._data_dir, run_folder / "repository")
            logger.debug("the Triton model repository is %s", repository)
        if self._owns_process:
            hide_secrets()  # before an untrusted template runs
        thread = self._resources.enter_context(ThreadPoolExecutor(1, "tokenizer"))
        loading = thread.submit(
            self._load_tokenizer, resolved.tokenizer_folder, log.phase("tokenizer")
        )
        importing = thread.submit(_import_request_path, meanwhile)
        vocabulary = tokenizer_info_file(self._settings, engine, repository)
        (files_of_guides := run_folder / "guides").mkdir(mode=0o700)
        variables = child_environment(
            self._environment.variables, self._settings.serving.pass_environment
        )
        guides = guide_check_for(
            engine,
            vocabulary,
            {**variables, "TMPDIR": str(files_of_guides)},  # a killed process removes none
            self._settings.serving.guide_compile_limit_s,
        )
        warming = None
        if guides is not None:
            self._resources.callback(guides.close)
            warming = guides.start()
        with log.phase("triton") as details:
            heartbeat = EngineHeartbeat()
            supervisor = Supervisor(
                self._new_run(prepared, repository, run_folder),
                supervised_limits(
                    self._settings.serving,
                    engine,
                    restarts=self._rank is None,
                ),
                heartbeat,
                self._status,
                tensorrt_llm_version=prepared.version,
                first_requests=lambda: _trials(engine, self._settings, loading.result()),
                on_restart=self._engine_restarts,
                give_up=_give_up,
                instances=engine.instance_count(self._settings),
            )
            self._resources.callback(supervisor.stop)
            loading.add_done_callback(partial(_stop_on_failure, supervisor))
            try:
                supervisor.start()
            except TritonError:
                loading.result()  # raises the cause, if the tokenizer is it
                raise
            details.append("ready, first token generated")
        ahead.close()
        tokenizer = loading.result()
        importing.result()
        from trtllm_truss.inference.pipeline import build_request_pipeline

        pipeline = build_request_pipeline(
            Deployment(self._settings, engine, resolved.capacity, prepared.version),
            guides,
            tokenizer,
            lambda: supervisor.client,
            heartbeat,
            self.metrics,
        )
        if warming is not None:
            warming.join(_GUIDES_LIMIT_S)
        self._resources.enter_context(exposed(self.metrics, lambda: supervisor.metrics_port))
        mounted = self._resources.enter_context(MountedFiles(resolved.unchecked).checking())
        self._running = _Running(supervisor, pipeline, mounted)
        self._resources.callback(settle_memory(self._is_idle))
        self._status.ready()
        logger.info("ready after %.1f s", log.elapsed_s)

    def _is_idle(self) -> bool:
        pipeline = self._running and self._running.pipeline
        return not (pipeline and (pipeline.admission.running or pipeline.admission.waiting))

    def _load(self) -> Load:
        if self._running is None:
            return Load()
        pipeline = self._running.pipeline
        admission = pipeline.admission
        return Load(
            waiting=admission.waiting,
            running=admission.running,
            max_running=admission.max_requests,
            reserved_tokens=admission.reserved_tokens,
            limit_tokens=admission.kv_cache_tokens,
            cache_tokens=admission.cache_tokens,
            block_tokens=pipeline.engine.cache_block_tokens,
        )

    def _load_tokenizer(
        self, folder: Path, phase: AbstractContextManager[list[str]]
    ) -> TextTokenizer:
        with phase as details:
            from trtllm_truss.text.tokenizer import load_tokenizer

            tokenizer = load_tokenizer(folder, trust_remote_code=self._settings.trust_remote_code)
            details.append(f"{tokenizer.vocab_size} tokens")
            if tokenizer.templates is not None:
                renders = tokenizer.templates.shape.renders  # detected here, while the engine loads
                details.append(f"chat template tried by {renders} conversations")
        return tokenizer

    def _stop(self) -> None:
        self._running = None
        self._resources.close()

    def _engine_restarts(self) -> None:
        if self._running is not None:
            self._running.pipeline.generator.engine_is_gone()

    def _new_run(
        self,
        prepared: PreparedEngine,
        repository: Path,
        run_folder: Path,
    ) -> Callable[[], ServerProcess]:
        """Return a factory of Triton processes for a rendered repository."""
        engine, variables = prepared.engine, self._environment.variables
        in_job = self._rank is not None
        server = prepared.server(run_folder, in_job=in_job)
        command = launcher(
            server.installation,
            repository=repository,
            backends=server.backends,
            world_size=engine.world_size if in_job else engine.server_ranks,
            environ=variables,
            ranks=engine.rank_launcher(variables) if in_job else None,
            rank=self._rank.index if self._rank else None,
        )
        keeps = engine.in_python_of_runtime and self._settings.serving.keep_kernels and not in_job
        caches = cache_variables(prepared.kernels, variables) if keeps else {}
        environment = {
            **server.variables,
            **(job_variables(variables) if self._rank else {}),
            **caches,
        }

        def new_run() -> ServerProcess:
            remove_damaged_tactics(caches, engine.world_size)
            return ServerProcess(
                command,
                environment,
                on_line=self._show_triton_line,
                http_port=self._settings.serving.http_port,
                grpc_port=self._settings.serving.triton_grpc_port,
            )

        return new_run

    def _show_triton_line(self, line: str) -> None:
        """Log Triton's output at INFO once it is healthy, and its long startup log at DEBUG."""
        level = logging.INFO if self.is_healthy() else logging.DEBUG
        _triton_log.log(level, "triton: %s", line)


def _give_up() -> None:
    """Exit this process without its engine, so that the platform replaces the container."""
    end_everything()
    os._exit(os.EX_SOFTWARE)


def _open_tracing(environment: Environment) -> Tracing | None:
    try:
        from trtllm_truss.observability.tracing import open_tracing
    except ImportError as error:
        raise SettingsError(
            f"runtime.enable_tracing_data is true, but OpenTelemetry is not installed ({error}). "
            "Add opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http to the image's "
            "requirements, or remove the key."
        ) from None
    tracing = open_tracing(environment.honeycomb_api_key)
    if tracing is not None:
        tracing.close_after_server()
    return tracing


def _trials(engine: Engine, settings: Settings, tokenizer: TextTokenizer) -> list[Trial]:
    from trtllm_truss.serving.trials import trials_of

    (prompt_id, *_) = tokenizer.encode("Hello", False) or [0]
    (end_id, *_) = (*tokenizer.eos_ids, prompt_id)
    return [*trials_of(engine, settings, prompt_id, end_id)]


def _stop_on_failure(supervisor: Supervisor, loading: Future[TextTokenizer]) -> None:
    if loading.exception() is not None:
        supervisor.stop()


def _import_request_path(then: Callable[[], object]) -> None:
    """Import the code that serves requests while Triton starts; then continue."""
    import_module("trtllm_truss.inference.generation")
    then()
    gc.collect()
    gc.freeze()
