"""Error texts of Triton and its backends, mapped to this project's errors.

A stream carries its errors as text without a code, so the text decides. The texts are those of
TensorRT-LLM 0.5 to 1.2 (``utils.cc``, ``model_instance_state.cc``, ``executor``), of Triton's core
and of our CPU backend.
"""

from __future__ import annotations

import re
from enum import IntEnum

from trtllm_truss.errors import (
    RETRY_AFTER_S,
    AdapterUnavailable,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineBroken,
    EngineUnavailable,
    InternalError,
    InvalidRequest,
    QueueFull,
    TrussError,
    unavailable,
)


class StatusCode(IntEnum):
    """Status of a finished call (https://grpc.io/docs/guides/status-codes/).

    Own enumeration, because importing grpc takes 30 ms.
    """

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_TOO_LONG = re.compile(
    r"prompt length .* exceeds|exceeds (the )?maximum (input|sequence) length"
    # executorImpl.cpp, fetchNewRequests: a stream that could be evicted; `compiled.engine`.
    r"|sequence length is potentially greater than max input length",
    re.I,
)
_QUEUE_FULL = re.compile(r"maximum queue size", re.I)
_TIMED_OUT = re.compile(r"request timeout expired|timed? ?out", re.I)
_OUR_FAULT = re.compile(
    r"unexpected (inference input|shape|data-?type|datatype)|is not present in the request"
    r"|expected inputtokens|sparse list must not|tensor must be present in list of output"
    r"|only supported if model is deployed using decoupled|request id is not provided",
    re.I,
)
# The form in which a Python backend's TritonError with code INVALID_ARG arrives; our CPU backend
# refuses requests this way.
_REFUSED = re.compile(r"^(\[request id: [^\]]*\] )?invalid argument: ", re.I)
# Sent by this project's checkpoint backend: neither the caller nor the engine is at fault.
_ADAPTER_GONE = re.compile(
    r'^(\[request id: [^\]]*\] )?adapter "[^\n]{0,400} cannot be used: ', re.I
)
_CALLERS_FAULT = re.compile(
    r"incorrect sampling config|beam ?width|not supported|unsupported|invalid argument"
    r"|must be (in|at|between|greater|less|positive|non-?negative)|out of range"
    r"|need to build engine with|must be enabled|paged context fmha support"
    r"|guideddecod|lora"
    # The checks of executor::SamplingConfig and executor::Request (decoding.py, rule 2).
    r"|assertion failed: .*(temperature|top_?[kp]|penalty|maxnewtokens|beam|minp\b|mintokens"
    r"|minlength|earlystopping|norepeatngramsize|numreturnsequences|promptignorelength)",
    re.I,
)
_ENGINE_GONE = re.compile(
    r"error in forward|forwardasync|cuda|out of memory|stub process|is not ready"
    r"|unknown model|shutting down|server is stopping|stopped accepting new inference requests"
    r"|has no available versions|failed to process the request",
    re.I,
)
# Errors after which every CUDA call fails until the process is replaced, according to NVIDIA's
# reference of cudaError_t. The executor fails the active requests, continues and stays ready:
# executorImpl.cpp, forwardSync and forwardAsync (near 0.19 and 1.1); the frame is that of
# cpp/include/tensorrt_llm/common/cudaUtils.h, `check`. Both must start the text: the rest may quote
# a request. The communicator between pipeline stages is not recreated either, whatever the error:
# TLLM_NCCL_CHECK of cpp/include/tensorrt_llm/runtime/utils/multiDeviceUtils.h, which
# cpp/tensorrt_llm/runtime/ncclCommunicator.cpp calls (both near 1.0).
_BROKEN = re.compile(
    r"encountered an error in forward\w* function: (\[tensorrt-llm\]\[error\] )?"
    r"((assertion failed: )?failed, nccl error |cuda (runtime|driver) error in [^\n]*: "
    r"(an illegal (memory access|instruction) was encountered|unspecified launch failure"
    r"|device-side assert triggered|the launch timed out and was terminated|misaligned address"
    r"|hardware stack error|operation not supported on global/shared address space"
    r"|invalid program counter|uncorrectable (ecc|nvlink) error|invalid access of peer gpu memory"
    r"|driver shutting down|unknown error))",
    re.I,
)
# Prefixes that the layers between engine and client add to a message.
_PREFIXES = re.compile(
    r"^(\[request id: [^\]]*\] |in ensemble '[^']*', "
    r"|(executor failed process requestid|encountered error for requestid) \S+"
    r"( due to the following error)?: |encountered an error when fetching new request: "
    r"|cannot process new request: |\[tensorrt-llm\]\[error\] |invalid argument: )+",
    re.I,
)
_SOURCE_PLACE = re.compile(r" \((/[^()]*|[^() ]*\.(cpp|cc|h|cu)):\d+\).*", re.S)

_STREAM_RULES: tuple[tuple[re.Pattern[str], type[TrussError]], ...] = (
    (_ADAPTER_GONE, AdapterUnavailable),
    (_TOO_LONG, ContextLengthExceeded),
    (_QUEUE_FULL, QueueFull),
    (_OUR_FAULT, InternalError),
    (_REFUSED, InvalidRequest),
    (_ENGINE_GONE, EngineUnavailable),
    (_CALLERS_FAULT, InvalidRequest),
    (_TIMED_OUT, DeadlineExceeded),
)
_STATUS_RULES: dict[StatusCode, type[TrussError]] = {
    StatusCode.INVALID_ARGUMENT: InvalidRequest,
    StatusCode.OUT_OF_RANGE: InvalidRequest,
    StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    StatusCode.RESOURCE_EXHAUSTED: QueueFull,
    StatusCode.UNAVAILABLE: EngineUnavailable,
    StatusCode.CANCELLED: EngineUnavailable,
    StatusCode.NOT_FOUND: EngineUnavailable,
    StatusCode.UNIMPLEMENTED: InternalError,
}
_MAY_RETRY = (EngineUnavailable, AdapterUnavailable, QueueFull)


def from_stream_text(text: str) -> TrussError:
    """Map the error text inside a response stream; unknown texts are internal errors."""
    if _BROKEN.match(_PREFIXES.sub("", text.strip())):
        return _build(EngineBroken, _clean(text))
    for pattern, error in _STREAM_RULES:
        if pattern.search(text):
            return _build(error, _clean(text))
    return InternalError(f"The engine failed: {_clean(text)}")


def from_status(status: StatusCode, details: str) -> TrussError:
    """Map a failed call by its status, or by its text if the status is too general."""
    error = _STATUS_RULES.get(status)
    if error is None:
        return from_stream_text(details)
    if error is EngineUnavailable:
        return unavailable(f"The engine cannot be reached: {_clean(details)}.")
    if error is InvalidRequest and _TOO_LONG.search(details):
        error = ContextLengthExceeded
    return _build(error, _clean(details))


def _build(error: type[TrussError], message: str) -> TrussError:
    if error is ContextLengthExceeded:  # starts like `describe`; the limit is not known here
        message = message.rstrip(".")
        message = f"This model's maximum context length is exceeded: {message} ({error.code})."
    return error(message, retry_after_s=RETRY_AFTER_S if issubclass(error, _MAY_RETRY) else None)


def _clean(text: str) -> str:
    """Remove prefixes, source locations and stack traces."""
    first_line = _SOURCE_PLACE.sub("", _PREFIXES.sub("", text.strip())).partition("\n")[0]
    return first_line.strip() or "no reason was given"
