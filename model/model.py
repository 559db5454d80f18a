"""The model class that Truss loads; the implementation is in packages/.

Truss reads the annotations of methods as objects, so they must not be postponed here.
"""

import gc
import logging
import os
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from trtllm_truss.configuration import load_configuration
from trtllm_truss.engines.host import HostInfo
from trtllm_truss.errors import ArtifactError, StartupError
from trtllm_truss.guard import guard_application, replace_watcher
from trtllm_truss.serving.log_lines import batch_log_lines, escape_log_lines
from trtllm_truss.serving.service import Service
from trtllm_truss.settings.loading import read_environment
from trtllm_truss.status import START_FAILED, ServiceStatus

if TYPE_CHECKING:
    from trtllm_truss.endpoints.routes import Routes

_import_routes = partial(import_module, "trtllm_truss.endpoints.routes")
"""The protocols take a third of a second to import, so this is done while the engine loads."""

logger = logging.getLogger("trtllm_truss")


class Model:
    """The interface of Truss's server to the engine."""

    def __init__(
        self, config: dict[str, Any], secrets: Any, data_dir: Path, lazy_data_resolver: Any = None
    ) -> None:
        self._config = config
        self._secrets = secrets
        self._data_dir = Path(data_dir)
        self._model_cache = lazy_data_resolver
        self._status = ServiceStatus.published(os.environ)
        self._service: Service | None = None
        self._routes: Routes | None = None

    def load(self) -> None:
        """Start the engine and return once it answers. Truss repeats the call if it fails.

        Raises:
            StartupError: the Truss cannot start.
        """
        if not self._is_in_process():
            gc.freeze()  # Truss's modules, so that the collection at the end is short
            escape_log_lines()
            replace_watcher()
        try:
            settings, defaults = load_configuration(self._config)
            if not self._is_in_process():
                guard_application(settings.serving)
            environment = read_environment(self._secrets)
            self._wait_for_model_cache()
            image = HostInfo.from_config(self._config).image
            service = Service(
                settings,
                environment,
                self._data_dir,
                image,
                self._status,
                is_traced=bool((self._config.get("runtime") or {}).get("enable_tracing_data")),
            )
            service.start(_import_routes)
        except StartupError as error:
            self._report_failure(error.message)
            raise
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # Truss waits for ever after what is not an Exception
            logger.exception("unhandled exception")
            sentence = (
                f"unhandled {type(error).__name__}: {error}; the log above has the traceback."
            )
            self._report_failure(sentence)
            raise StartupError(sentence) from error
        self._service = service
        self._routes = _import_routes().build_routes(service, defaults)
        if self._is_in_process():
            from trtllm_truss.endpoints.routes import InProcessPredict

            self.predict = InProcessPredict(service, defaults)  # type: ignore
        else:
            batch_log_lines()

    def is_healthy(self) -> bool:
        """Return whether the engine answers; the readiness route calls this."""
        return self._service is not None and self._service.is_healthy()

    async def predict(self, request: Request) -> Response:
        """Handle `POST /v1/models/model:predict` and `POST /invocations`.

        Takes the raw request, so that invalid JSON gets our error instead of Truss's.
        """
        return await self._loaded().predict(request)

    async def chat_completions(self, request: Request) -> Response:
        """Handle `POST /v1/chat/completions`."""
        return await self._loaded().chat_completions(request)

    async def completions(self, request: Request) -> Response:
        """Handle `POST /v1/completions`."""
        return await self._loaded().completions(request)

    async def responses(self, request: Request) -> Response:
        """Handle `POST /v1/responses`."""
        return await self._loaded().responses(request)

    async def messages(self, request: Request) -> Response:
        """Handle `POST /v1/messages`."""
        return await self._loaded().messages(request)

    async def embeddings(self, request: Request) -> Response:
        """Refuse `POST /v1/embeddings` in the shape of OpenAI's errors."""
        return await self._loaded().embeddings(request)

    def _wait_for_model_cache(self) -> None:
        """Wait until Truss has placed the files of `model_cache`; it requires the call.

        Source: `LazyDataResolverV2` in truss/templates/shared/lazy_data_resolver.py, 0.18.35.
        """
        if self._model_cache is None:  # an older Truss, or `truss.load`
            return
        try:
            self._model_cache.block_until_download_complete()
        except RuntimeError as error:
            raise ArtifactError(
                f"model_cache: {error}. Check its repositories and the secret of the token."
            ) from error

    def _report_failure(self, sentence: str) -> None:
        self._status.failed(sentence)
        logger.error("cannot start: %s", sentence, extra={START_FAILED: True})

    def _is_in_process(self) -> bool:
        """Detect `truss.load(DIR)`, which passes a dict as secrets; the server an object."""
        return isinstance(self._secrets, dict)

    def _loaded(self) -> "Routes":
        assert self._routes is not None, "Truss asks only after load()"
        return self._routes
