"""From settings to something that answers: examined, rendered, started, kept running."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from trtllm_truss.engines.findings import Severity
from trtllm_truss.engines.inspection import Engine
from trtllm_truss.engines.surroundings import Surroundings
from trtllm_truss.engines.versions import PINNED_VERSION
from trtllm_truss.errors import EngineUnavailable, SettingsError
from trtllm_truss.serving.activity import Activity
from trtllm_truss.serving.generation import Generator
from trtllm_truss.serving.phases import Phases
from trtllm_truss.serving.preparation import (
    examine_engine,
    fetch_tokenizer,
    local_surroundings,
)
from trtllm_truss.serving.rendering import render_engine
from trtllm_truss.serving.supervisor import Supervisor
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings
from trtllm_truss.triton.command import launcher, server_environment
from trtllm_truss.triton.installation import assemble_backends, find_installation
from trtllm_truss.triton.process import ServerProcess

logger = logging.getLogger(__name__)
_triton_log = logging.getLogger("triton")

_GIVEN_UP_STATUS = 70  # EX_SOFTWARE: the engine cannot be kept running


class Service:
    """One engine behind one Triton. `start` and `stop` may be called from any thread."""

    def __init__(self, settings: Settings, environment: Environment, data_dir: Path) -> None:
        """Describes a service; nothing is started.

        Args:
            settings: what to serve and how.
            environment: secrets and variables.
            data_dir: the Truss's data folder, which holds the Triton model repository's template.
        """
        self._settings = settings
        self._environment = environment
        self._data_dir = data_dir
        self._lock = threading.Lock()
        self._run_folder: Path | None = None
        self._supervisor: Supervisor | None = None
        self._generator: Generator | None = None

    @property
    def generator(self) -> Generator:
        """What answers requests.

        Raises:
            EngineUnavailable: nothing was started.
        """
        if self._generator is None:
            raise EngineUnavailable("the engine was not started.")
        return self._generator

    def is_healthy(self) -> bool:
        """Whether the engine answers now."""
        return self._supervisor is not None and self._supervisor.is_healthy

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
        phases = Phases(4)
        surroundings = local_surroundings(self._environment)
        version = surroundings.runtime_version or PINNED_VERSION
        with phases.phase("engine") as said:
            engine = self._examined_engine(surroundings)
            said.append(f"{engine.kind.value}, context of {engine.max_sequence_tokens} tokens")
        with phases.phase("tokenizer") as said:
            tokenizer = fetch_tokenizer(self._settings, self._environment, engine)
            said.append(f"{tokenizer.vocab_size} tokens")
        with phases.phase("triton model repository") as said:
            self._run_folder = Path(tempfile.mkdtemp(prefix="trtllm-truss-"))
            repository = render_engine(
                self._settings, engine, self._data_dir, self._run_folder / "repository", version
            )
            said.append(str(repository))
        with phases.phase("triton") as said:
            activity = Activity()
            self._supervisor = Supervisor(
                self._new_run(engine, repository, self._run_folder),
                self._settings.serving,
                activity,
                tensorrt_llm_version=version,
                first_token_id=(tokenizer.encode("Hello", False) or [0])[0],
                give_up=lambda: os._exit(_GIVEN_UP_STATUS),
            )
            supervisor = self._supervisor
            supervisor.start()
            said.append("ready, first token generated")
        self._generator = Generator(engine, tokenizer, lambda: supervisor.client, activity)
        logger.info("ready after %.1f s", phases.elapsed_s)

    def _stop(self) -> None:
        self._generator = None
        if self._supervisor is not None:
            self._supervisor.stop()
            self._supervisor = None
        if self._run_folder is not None:
            shutil.rmtree(self._run_folder, ignore_errors=True)
            self._run_folder = None

    def _examined_engine(self, surroundings: Surroundings) -> Engine:
        """The engine, once nothing speaks against starting it."""
        examined = examine_engine(self._settings, self._environment, surroundings)
        if examined.capacity is not None:
            logger.info("%s", examined.capacity.sentence)
        errors = [f.sentence for f in examined.findings if f.severity is Severity.ERROR]
        for finding in examined.findings:
            if finding.severity is Severity.WARNING:
                logger.warning("%s", finding.sentence)
        if errors:
            raise SettingsError(" ".join(errors))
        return examined.engine

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
        environment = server_environment(self._environment.variables, installation)
        return lambda: ServerProcess(command, environment, on_line=self._show_triton_line)

    def _show_triton_line(self, line: str) -> None:
        """Triton's start-up fills pages and is told only when it fails; what follows is news."""
        level = logging.INFO if self.is_healthy() else logging.DEBUG
        _triton_log.log(level, "triton: %s", line)
