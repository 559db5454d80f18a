"""The face that Truss sees: load, predict, is_healthy. Everything else is in packages/.

Truss reads the annotations of `predict` as objects, so they must not be postponed here.
"""

import logging
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trtllm_truss.endpoints.predict import PredictEndpoint
from trtllm_truss.errors import StartupError
from trtllm_truss.protocols.predict import parse_defaults
from trtllm_truss.serving.service import Service
from trtllm_truss.settings.loading import parse_settings, read_environment

logger = logging.getLogger("trtllm_truss")


class Model:
    """What Truss's server loads and asks."""

    def __init__(self, config: dict[str, Any], secrets: Any, data_dir: Path) -> None:
        self._config = config
        self._secrets = secrets
        self._data_dir = Path(data_dir)
        self._service: Service | None = None
        self._predict: PredictEndpoint | None = None

    def load(self) -> None:
        """Starts the engine; returns once it answers. Truss calls it again when it fails."""
        try:
            settings = parse_settings(self._config)
            defaults = parse_defaults(settings.generation)
            service = Service(settings, read_environment(self._secrets), self._data_dir)
            service.start()
        except StartupError as error:
            logger.error("cannot start: %s", error.message)
            raise
        self._service = service
        self._predict = PredictEndpoint(service, defaults)

    def is_healthy(self) -> bool:
        """Whether the engine answers."""
        return self._service is not None and self._service.is_healthy()

    async def predict(self, request: Request) -> Response:
        """Answers `POST /v1/models/model:predict` and `POST /invocations`.

        The body is read here rather than by Truss, so that bad JSON gets our own error.
        """
        assert self._predict is not None, "Truss asks only after load()"
        return await self._predict(request)
