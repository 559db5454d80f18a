"""The model class that Truss loads; the implementation is in packages/.

Truss reads the annotations of methods as objects, so they must not be postponed here.
"""

from trtllm_truss.endpoints.truss_application import answer_while_importing, guard_application

answer_while_importing()  # Truss's port is already open, and the imports below take half a second

# ruff: noqa: E402
import gc
import os
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from trtllm_truss.endpoints.application import Application, import_routes, start_service
from trtllm_truss.endpoints.connection_limit import limit_connections_of_truss
from trtllm_truss.endpoints.guard import replace_watcher
from trtllm_truss.errors import ArtifactError
from trtllm_truss.local_requests import PREDICT
from trtllm_truss.observability.log_lines import batch_log_lines, escape_log_lines
from trtllm_truss.observability.status import ServiceStatus
from trtllm_truss.settings.loading import Environment, read_environment
from trtllm_truss.settings.model import Serving

if TYPE_CHECKING:
    from trtllm_truss.endpoints.endpoint import Endpoint
    from trtllm_truss.serving.service import Service


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
        # Once, because a start removes secrets from the process's environment.
        self._read_environment = cache(partial(read_environment, secrets))
        self._service: Service | None = None
        self._application: Application | None = None
        self._endpoints: Mapping[str, Endpoint] = {}

    def load(self) -> None:
        """Start the engine and return once it generates. Truss repeats the call if it fails.

        Raises:
            StartupError: the Truss cannot start.
        """
        if not self._is_in_process():
            gc.freeze()  # Truss's modules, so that the collection at the end is short
            escape_log_lines()
            replace_watcher()
        self._service, defaults = start_service(
            self._config,
            self._read_environment,
            self._data_dir,
            self._status,
            self._before_start,
            owns_process=not self._is_in_process(),
        )
        if self._is_in_process():
            self.predict = import_routes().InProcessPredict(self._service, defaults)  # type: ignore
            return
        assert self._application is not None, "created before the start"
        self._endpoints = import_routes().build_routes(self._service, defaults)
        self._application.begin(self._service, self._endpoints)
        batch_log_lines()

    def is_healthy(self) -> bool:
        """Return True if the engine responds; the readiness route calls this."""
        return self._service is not None and self._service.is_healthy()

    async def predict(self, request: Request) -> Response:
        """Handle `POST /v1/models/model:predict` and `POST /invocations`.

        Takes the raw request, so that invalid JSON gets our error instead of Truss's.
        """
        return await self._endpoints[PREDICT](request)

    async def chat_completions(self, request: Request) -> Response:
        """Handle `POST /v1/chat/completions`."""
        return await self._endpoints["/v1/chat/completions"](request)

    async def completions(self, request: Request) -> Response:
        """Handle `POST /v1/completions`."""
        return await self._endpoints["/v1/completions"](request)

    async def responses(self, request: Request) -> Response:
        """Handle `POST /v1/responses`."""
        return await self._endpoints["/v1/responses"](request)

    async def messages(self, request: Request) -> Response:
        """Handle `POST /v1/messages`."""
        return await self._endpoints["/v1/messages"](request)

    async def embeddings(self, request: Request) -> Response:
        """Refuse `POST /v1/embeddings` with an error in OpenAI's format."""
        return await self._endpoints["/v1/embeddings"](request)

    def _before_start(self, limits: Serving, environment: Environment) -> None:
        if not self._is_in_process():
            self._application = Application(self._config, limits, environment.api_key)
            guard_application(self._application.before)
            limit_connections_of_truss()
        self._wait_for_model_cache()

    def _wait_for_model_cache(self) -> None:
        """Wait until Truss has placed the files of `model_cache`; Truss requires the call.

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

    def _is_in_process(self) -> bool:
        """Detect `truss.load(DIR)`, which passes a dict as secrets; the server passes an object."""
        return isinstance(self._secrets, dict)
