"""From settings to something that answers: resolved, rendered, started, kept running."""

from __future__ import annotations

import gc
import logging
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_truss.builder.run.build_engine import ensure_engine
from trtllm_truss.engines.compatibility.host import HostInfo
from trtllm_truss.engines.inspection import Engine
from trtllm_truss.engines.versions import version_to_render
from trtllm_truss.errors import EngineUnavailable
from trtllm_truss.inference.admission import Admission
from trtllm_truss.inference.capabilities import Capabilities
from trtllm_truss.inference.decode_stream import EngineHeartbeat
from trtllm_truss.inference.generation import Generator
from trtllm_truss.inference.guide_gate import GuideGate, guide_check_for
from trtllm_truss.inference.preprocessing import Preprocessor
from trtllm_truss.metrics.collector import Metrics, exposed
from trtllm_truss.processes.leftovers import sweep, temporary_folder
from trtllm_truss.serving.preflight import (
    ResolvedEngine,
    local_host_info,
    resolve_engine,
)
from trtllm_truss.serving.rendering import render_engine, tokenizer_info_file
from trtllm_truss.serving.supervisor import Supervisor
from trtllm_truss.settings.child_environment import child_environment
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Serving, Settings
from trtllm_truss.text.tokenizer import load_tokenizer
from trtllm_truss.triton.server.command import launcher, server_environment
from trtllm_truss.triton.server.installation import assemble_backends, find_installation
from trtllm_truss.triton.server.process import ServerProcess

logger = logging.getLogger(__name__)
_triton_log = logging.getLogger("triton")

_OBJECTS_BEFORE_COLLECTION = 20_000
_OPEN_FILES = 65_536  # more make programs slow that close all they might have
_GIVEN_UP_STATUS = 70  # EX_SOFTWARE: the engine cannot be kept running


class StartupLog:
    """One log line per phase of a start, with its number and time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._done = 0
        self._begun = time.monotonic()

    @contextmanager
    def phase(self, name: str) -> Iterator[list[str]]:
        """Logs a phase when it begins and when it is done.

        Yields:
            A list of details for the closing line.
        """
        self._done += 1
        label = f"[{self._done}/{self._count}] {name}"
        logger.info("%s …", label)
        begun = time.monotonic()
        details: list[str] = []
        yield details
        logger.info(
            "%s: %s (%.1f s)", label, ", ".join(details) or "done", time.monotonic() - begun
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first phase could begin."""
        return time.monotonic() - self._begun


@dataclass(frozen=True, slots=True)
class _Running:
    """What a started service answers with."""

    supervisor: Supervisor
    admission: Admission
    generator: Generator
    sampling: Mapping[str, Any]


class Service:
    """One engine behind one Triton. `start` and `stop` may be called from any thread.

    Attributes:
        metrics: what is counted, over all starts.
    """

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        data_dir: Path,
        image: str | None = None,
    ) -> None:
        """Describes a service; nothing is started.

        Args:
            settings: what to serve and how.
            environment: secrets and variables.
            data_dir: the Truss's data folder, which holds the Triton model repository's template.
            image: `base_image.image` of config.yaml.
        """
        self._settings = settings
        self._environment = environment
        self._data_dir = data_dir
        self._image = image
        self._lock = threading.Lock()
        self._resources = ExitStack()
        self._running: _Running | None = None
        self.metrics = Metrics(
            waiting=lambda: self._running.admission.waiting if self._running else 0,
            running=lambda: self._running.admission.running if self._running else 0,
            engine_up=self.is_healthy,
        )

    @property
    def limits(self) -> Serving:
        """The limits that the operator has set."""
        return self._settings.serving

    @property
    def generator(self) -> Generator:
        """What answers requests.

        Raises:
            EngineUnavailable: nothing was started.
        """
        return self._started().generator

    @property
    def sampling(self) -> Mapping[str, Any]:
        """How the model's authors recommend to draw tokens.

        Raises:
            EngineUnavailable: nothing was started.
        """
        return self._started().sampling

    def is_healthy(self) -> bool:
        """Whether the engine answers now."""
        return self._running is not None and self._running.supervisor.is_healthy

    def start(self) -> None:
        """Starts everything and returns once the engine answers. Truss may call it twice.

        Raises:
            StartupError: the one sentence that says what is wrong.
        """
        with self._lock:
            self._stop()
            try:
                self._start()
            except BaseException:
                self._stop()
                raise

    def stop(self) -> None:
        """Ends Triton and everything it started; safe to call at any time."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        _raise_file_limit()
        log = StartupLog(4)
        sweep()
        host = local_host_info(self._environment)
        version = version_to_render(host.runtime_version, self._image)
        with log.phase("engine") as details:
            resolved = self._resolved_engine(host)
            engine = resolved.engine
            details.append(f"{engine.kind.value}, context of {engine.max_sequence_tokens} tokens")
        with log.phase("tokenizer") as details:
            tokenizer = load_tokenizer(
                resolved.tokenizer_folder, trust_remote_code=self._settings.trust_remote_code
            )
            details.append(f"{tokenizer.vocab_size} tokens")
        with log.phase("triton model repository") as details:
            run_folder = self._resources.enter_context(temporary_folder())
            repository = render_engine(
                self._settings,
                engine,
                self._data_dir,
                run_folder / "repository",
                version,
                resolved.tokenizer_folder,
            )
            details.append(str(repository))
        with log.phase("triton") as details:
            heartbeat = EngineHeartbeat()
            supervisor = Supervisor(
                self._new_run(engine, repository, run_folder),
                self._settings.serving,
                heartbeat,
                tensorrt_llm_version=version,
                first_token_id=(tokenizer.encode("Hello", False) or [0])[0],
                on_restart=self._engine_restarts,
                give_up=lambda: os._exit(_GIVEN_UP_STATUS),
            )
            self._resources.callback(supervisor.stop)
            supervisor.start()
            details.append("ready, first token generated")
        self._resources.enter_context(exposed(self.metrics, lambda: supervisor.metrics_port))
        admission = Admission.for_engine(self._settings, engine, resolved.capacity)
        guides = guide_check_for(
            engine,
            tokenizer_info_file(self._settings, engine, repository),
            child_environment(self._environment.variables, self._settings.serving.pass_environment),
            self._settings.serving.guide_compile_limit_s,
        )
        if guides is not None:
            self._resources.callback(guides.close)
        preprocessor = Preprocessor(
            engine,
            tokenizer,
            Capabilities.for_engine(self._settings, engine, resolved.capacity),
            GuideGate(guides) if guides is not None else None,
        )
        generator = Generator(
            preprocessor,
            tokenizer,
            lambda: supervisor.client,
            self._settings.serving,
            admission=admission,
            heartbeat=heartbeat,
            metrics=self.metrics,
        )
        self._running = _Running(supervisor, admission, generator, tokenizer.sampling)
        _settle_memory()
        logger.info("ready after %.1f s", log.elapsed_s)

    def _stop(self) -> None:
        self._running = None
        self._resources.close()

    def _started(self) -> _Running:
        if self._running is None:
            raise EngineUnavailable("the engine was not started.")
        return self._running

    def _engine_restarts(self) -> None:
        if self._running is not None:
            self._running.generator.engine_is_gone()
        self.metrics.engine_restarted()

    def _resolved_engine(self, host: HostInfo) -> ResolvedEngine:
        """The engine, built if need be, once nothing speaks against starting it."""
        built = None
        if self._settings.engine_repository is None:
            built = ensure_engine(self._settings, self._environment, host)
        resolved = resolve_engine(self._settings, self._environment, host, built)
        if resolved.capacity is not None:
            logger.info("%s", resolved.capacity.summary)
        for finding in resolved.findings:
            logger.warning("%s", finding.message)
        return resolved

    def _new_run(
        self, engine: Engine, repository: Path, run_folder: Path
    ) -> Callable[[], ServerProcess]:
        """What starts Triton on a rendered repository, as often as it must."""
        installation = find_installation(self._environment.variables)
        backends = assemble_backends(
            installation, run_folder / "backends", self._environment.variables
        )
        command = launcher(
            installation,
            repository=repository,
            backends=backends,
            world_size=engine.world_size,
            environ=self._environment.variables,
        )
        serving = self._settings.serving
        environment = server_environment(
            self._environment.variables, installation, serving.pass_environment
        )
        return lambda: ServerProcess(
            command, environment, on_line=self._show_triton_line, http_port=serving.http_port
        )

    def _show_triton_line(self, line: str) -> None:
        """Triton's start-up fills pages and is told only when it fails; what follows is news."""
        level = logging.INFO if self.is_healthy() else logging.DEBUG
        _triton_log.log(level, "triton: %s", line)


def _raise_file_limit() -> None:
    """Leaves room for connections, each of which is an open file; Triton inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft not in (resource.RLIM_INFINITY, wanted):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _settle_memory() -> None:
    """What is here now stays, so no collection need look at it; what comes goes without one."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
