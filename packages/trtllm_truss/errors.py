"""The tree of this project's errors. Every one carries the code and HTTP status its reader sees.

::

    TrussError
    ├── RequestError                 the caller's fault, decided before the engine sees anything
    │   ├── InvalidRequest           400 invalid_request
    │   ├── BodyTooLarge             413 body_too_large
    │   └── ContextLengthExceeded    400 context_length_exceeded
    ├── QueueFull                    429 queue_full            (Retry-After)
    ├── EngineUnavailable            503 engine_unavailable    (Retry-After)
    ├── DeadlineExceeded             504 deadline_exceeded
    ├── InternalError                500 internal_error        (a bug of ours)
    └── StartupError                 the Truss cannot start; never reaches an HTTP client
        ├── SettingsError            config.yaml, a secret or the environment is wrong
        ├── ArtifactError            an engine or tokenizer repository cannot be used
        ├── BuildError               an engine could not be built or published
        └── TritonError              Triton is missing, or died or hung while starting

A message is one or two sentences that name the field, the value and the remedy. It never holds a
secret and never a prompt.
"""

from __future__ import annotations


class TrussError(Exception):
    """Base of every error this project raises on purpose.

    Attributes:
        code: the machine-readable word in an error body.
        status: the HTTP status of a response that carries it.
        param: the request field at fault, if there is one.
        retry_after_s: seconds after which trying again makes sense, if it ever does.
    """

    code = "internal_error"
    status = 500

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class RequestError(TrussError):
    """The request itself cannot be served, now or later."""

    code = "invalid_request"
    status = 400


class InvalidRequest(RequestError):
    """A field is missing, of the wrong type, out of range, unknown or unsupported."""


class BodyTooLarge(RequestError):
    """The body has more bytes than `serving.max_body_bytes`."""

    code = "body_too_large"
    status = 413


class ContextLengthExceeded(RequestError):
    """Prompt and requested tokens do not fit into the engine's context."""

    code = "context_length_exceeded"


class QueueFull(TrussError):
    """More requests are waiting than the settings allow."""

    code = "queue_full"
    status = 429


class EngineUnavailable(TrussError):
    """The engine is starting, restarting or gone."""

    code = "engine_unavailable"
    status = 503


class DeadlineExceeded(TrussError):
    """A request took longer than its deadline."""

    code = "deadline_exceeded"
    status = 504


class InternalError(TrussError):
    """Something happened that this code did not foresee."""


class StartupError(TrussError):
    """The Truss cannot start; the message is what the operator reads last."""

    code = "startup_failed"


class SettingsError(StartupError):
    """A setting, secret or environment variable is wrong."""


class ArtifactError(StartupError):
    """An engine or tokenizer repository is missing, incomplete or not what the settings say."""


class BuildError(StartupError):
    """An engine could not be built, or what was built could not be published."""


class TritonError(StartupError):
    """Triton Inference Server is not installed, or failed while starting."""
