"""From settings to something that answers: fetched, inspected, rendered, started, kept healthy."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from pathlib import Path

from trtllm_truss.artifacts.fetch import fetch_repository
from trtllm_truss.engines.inspection import Engine, inspect_engine
from trtllm_truss.engines.versions import PINNED_VERSION
from trtllm_truss.errors import EngineUnavailable, SettingsError, TritonError
from trtllm_truss.serving.generation import Generator
from trtllm_truss.serving.phases import Phases
from trtllm_truss.settings.loading import Environment
from trtllm_truss.settings.model import Settings
from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer
from trtllm_truss.triton.client import TritonClient
from trtllm_truss.triton.command import server_command, server_environment
from trtllm_truss.triton.installation import assemble_backends, find_installation
from trtllm_truss.triton.process import ServerProcess, State
from trtllm_truss.triton.repository import render_repository

logger = logging.getLogger(__name__)
_triton_log = logging.getLogger("triton")

_RETRY_AFTER_S = 5


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
        self._template = data_dir / "triton_model_repository"
        self._lock = threading.Lock()
        self._run_folder: Path | None = None
        self._triton: ServerProcess | None = None
        self._client: TritonClient | None = None
        self._generator: Generator | None = None

    @property
    def generator(self) -> Generator:
        """What answers requests.

        Raises:
            EngineUnavailable: the engine is not running.
        """
        if self._generator is None or not self.is_healthy():
            raise EngineUnavailable(
                "the engine is not running; try again shortly.", retry_after_s=_RETRY_AFTER_S
            )
        return self._generator

    def is_healthy(self) -> bool:
        """Whether the engine is up."""
        return self._triton is not None and self._triton.state is State.READY

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
        with phases.phase("engine") as findings:
            engine = self._fetch_engine()
            findings.append(f"{engine.kind.value}, context of {engine.max_sequence_tokens} tokens")
        with phases.phase("tokenizer") as findings:
            tokenizer = self._load_tokenizer(engine)
            findings.append(f"{tokenizer.vocab_size} tokens")
        with phases.phase("triton model repository") as findings:
            self._run_folder = Path(tempfile.mkdtemp(prefix="trtllm-truss-"))
            self._triton = self._server(engine, self._run_folder)
            findings.append(str(self._run_folder))
        with phases.phase("triton") as findings:
            self._triton.start()
            self._triton.wait_until_ready(self._settings.serving.start_timeout_s)
            findings.append(f"ready at {self._triton.grpc_address}")
        self._client = TritonClient(
            self._triton.grpc_address, tensorrt_llm_version=PINNED_VERSION
        )
        self._generator = Generator(engine, tokenizer, self._client)
        logger.info("ready after %.1f s", phases.elapsed_s)

    def _stop(self) -> None:
        self._generator = self._client = None
        if self._triton is not None:
            self._triton.stop()
            self._triton = None
        if self._run_folder is not None:
            shutil.rmtree(self._run_folder, ignore_errors=True)
            self._run_folder = None

    def _fetch_engine(self) -> Engine:
        settings = self._settings
        engine = inspect_engine(
            fetch_repository(
                settings.engine_repository,
                settings.engine_revision,
                setting="engine_repository",
                token=self._environment.hf_access_token,
            )
        )
        for name in ("tensor_parallelism", "pipeline_parallelism"):
            wanted, built = getattr(settings, name), getattr(engine, name)
            if wanted != built:
                raise SettingsError(
                    f"config.yaml: model_metadata.{name} is {wanted}, but the engine in "
                    f"{settings.engine_repository} was built for {built}; set it to {built}."
                )
        return engine

    def _load_tokenizer(self, engine: Engine) -> TextTokenizer:
        settings = self._settings
        if settings.tokenizer_repository is None:
            return load_tokenizer(engine.folder)
        return load_tokenizer(
            fetch_repository(
                settings.tokenizer_repository,
                settings.tokenizer_revision,
                setting="tokenizer_repository",
                token=self._environment.hf_access_token,
            )
        )

    def _server(self, engine: Engine, run_folder: Path) -> ServerProcess:
        """Lays out everything Triton reads into `run_folder`."""
        if engine.tensor_parallelism * engine.pipeline_parallelism > 1:
            raise TritonError("engines for more than one GPU are not served yet.")
        installation = find_installation(self._environment.variables)
        repository = render_repository(
            self._template,
            run_folder / "repository",
            engine_dir=engine.folder,
            backend=engine.kind.value,
            max_batch_size=self._max_batch_size(engine),
            parameters=self._parameters(),
        )
        backends = assemble_backends(
            installation, run_folder / "backends", self._environment.variables
        )
        return ServerProcess(
            lambda launch: server_command(
                installation.executable, launch, repository=repository, backends=backends
            ),
            server_environment(self._environment.variables, installation),
            on_line=self._show_triton_line,
        )

    def _show_triton_line(self, line: str) -> None:
        """Triton's start-up fills pages and is told only when it fails; what follows is news."""
        level = logging.INFO if self.is_healthy() else logging.DEBUG
        _triton_log.log(level, "triton: %s", line)

    def _max_batch_size(self, engine: Engine) -> int:
        wanted = self._settings.runtime.get("max_batch_size")
        if wanted is None:
            return engine.max_batch_size
        if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
            raise SettingsError(
                f"config.yaml: model_metadata.runtime.max_batch_size is {wanted!r}; it must be a "
                "whole number, at least 1."
            )
        return wanted

    def _parameters(self) -> dict[str, str]:
        """`runtime` as config.pbtxt holds it: every value a text."""
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self._settings.runtime.items()
            if value is not None and name != "max_batch_size"
        }
