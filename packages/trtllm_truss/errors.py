"""The errors of this project, each with its code and HTTP status.

::

    TrussError
    ├── RequestError                 the caller's fault, raised before the engine runs
    │   ├── InvalidRequest           400 invalid_request
    │   ├── NotServed                404 not_served
    │   ├── BodyTimeout              408 body_timeout
    │   ├── BodyTooLarge             413 body_too_large
    │   ├── UnsupportedEncoding      415 unsupported_encoding
    │   └── ContextLengthExceeded    400 context_length_exceeded
    ├── QueueFull                    429 queue_full            (Retry-After)
    ├── EngineUnavailable            503 engine_unavailable    (Retry-After)
    ├── AdapterUnavailable           503 adapter_unavailable   (Retry-After)
    ├── DeadlineExceeded             504 deadline_exceeded
    ├── InternalError                500 internal_error        (a bug here)
    └── StartupError                 the Truss cannot start; never reaches an HTTP client
        ├── SettingsError            config.yaml, a secret or the environment is wrong
        ├── ArtifactError            an engine or tokenizer repository is unusable
        ├── BuildError               an engine could not be built or published
        └── TritonError              Triton is missing, or failed to start

A message has one or two sentences with field, value and remedy, never a secret or a prompt.
"""

from __future__ import annotations


class TrussError(Exception):
    """Base of all errors that this project raises.

    Attributes:
        code: machine-readable identifier in an error body.
        status: HTTP status of its response.
        param: the field at fault, if any.
        retry_after_s: seconds until a retry may succeed, if it can.
    """

    code = "internal_error"
    status = 500

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        message = _encodable(message)
        super().__init__(message)
        self.message = message
        self.param = None if param is None else _encodable(param)
        self.retry_after_s = retry_after_s


class RequestError(TrussError):
    """The request cannot be served, now or later."""

    code = "invalid_request"
    status = 400


class InvalidRequest(RequestError):
    """A field is missing, of the wrong type, out of range, unknown or unsupported."""


class NotServed(RequestError):
    """The route exists, but generative models cannot serve it."""

    code = "not_served"
    status = 404


class BodyTimeout(RequestError):
    """The body arrives too slowly for `serving.body_timeout_s`."""

    code = "body_timeout"
    status = 408

    @classmethod
    def after(cls, timeout_s: float, bytes_per_s: int) -> BodyTimeout:
        return cls(
            f"the body paused for {timeout_s:g} s, or took longer than that plus a second per "
            f"{bytes_per_s} bytes (serving.body_timeout_s). Send it faster."
        )


class BodyTooLarge(RequestError):
    """The body has more bytes than `serving.max_body_bytes`."""

    code = "body_too_large"
    status = 413

    @classmethod
    def beyond(cls, max_bytes: int) -> BodyTooLarge:
        return cls(
            f"the body is too large; at most {max_bytes} bytes are allowed "
            "(serving.max_body_bytes). Send less."
        )


class UnsupportedEncoding(RequestError):
    """The body is compressed."""

    code = "unsupported_encoding"
    status = 415


class ContextLengthExceeded(RequestError):
    """Prompt and requested tokens do not fit into the engine's context."""

    code = "context_length_exceeded"

    @classmethod
    def describe(
        cls, context_tokens: int, details: str, *, param: str | None = None
    ) -> ContextLengthExceeded:
        """Return an error with a message that clients recognize.

        It starts with the sentence by which litellm recognizes the error, and ends with the code by
        which LangChain does: https://docs.litellm.ai/docs/exception_mapping.

        Args:
            context_tokens: the engine's limit of prompt and output.
            details: the field, its length and the remedy, without a full stop.
            param: the field at fault.
        """
        sentence = f"This model's maximum context length is {context_tokens} tokens."
        return cls(f"{sentence} However, {details} ({cls.code}).", param=param)


class QueueFull(TrussError):
    """The queue is full."""

    code = "queue_full"
    status = 429


class Overloaded(TrussError):
    """The bodies of all requests in flight reach `serving.max_bodies_bytes`."""

    code = "overloaded"
    status = 503


class EngineUnavailable(TrussError):
    """The engine is starting, restarting or gone."""

    code = "engine_unavailable"
    status = 503


RETRY_AFTER_S = 5
"""For callers whose request may succeed later: a restart takes longer, and a busy engine less."""


def unavailable(message: str) -> EngineUnavailable:
    """Build the error for an engine that is gone or exiting; a later retry can succeed."""
    return EngineUnavailable(message, retry_after_s=RETRY_AFTER_S)


class EngineBroken(EngineUnavailable):
    """The engine fails every request until it is restarted."""


class AdapterUnavailable(TrussError):
    """The files of a LoRA adapter were damaged, removed or replaced; the engine itself works."""

    code = "adapter_unavailable"
    status = 503


class DeadlineExceeded(TrussError):
    """A request exceeded its deadline."""

    code = "deadline_exceeded"
    status = 504


class InternalError(TrussError):
    """A bug."""


class StartupError(TrussError):
    """The Truss cannot start; the message is the last line that the operator sees."""

    code = "startup_failed"


class SettingsError(StartupError):
    """A setting, secret or environment variable is wrong."""


class ArtifactError(StartupError):
    """An engine or tokenizer repository is missing, incomplete or does not match the settings."""


class BuildError(StartupError):
    """An engine could not be built or published."""


class TritonError(StartupError):
    """Triton Inference Server is not installed or failed to start."""


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON may contain but UTF-8 may not."""
    return text.encode(errors="replace").decode()


def drop_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of a handled error and of its context.

    Their frames hold the error itself, which is a cycle, and with it the request's body.
    """
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__context__
