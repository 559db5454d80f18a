from __future__ import annotations

import grpc
import pytest

from trtllm_truss import errors
from trtllm_truss.triton.client.failures import StatusCode, from_status, from_stream_text


def overflow(message: str) -> str:
    return f"This model's maximum context length is exceeded: {message} (context_length_exceeded)."


LATER = (
    "Executor failed process requestId 7 due to the following error: "
    "Encountered an error when fetching new request: "
)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            LATER + "Prompt length (2000) exceeds maximum input length (1024). Set log level",
            errors.ContextLengthExceeded,
            overflow("Prompt length (2000) exceeds maximum input length (1024). Set log level"),
        ),
        (
            LATER + "Request sequence length is potentially greater than max input length. This "
            "cannot be run unless streaming is disabled",
            errors.ContextLengthExceeded,
            overflow(
                "Request sequence length is potentially greater than max input length. This cannot "
                "be run unless streaming is disabled"
            ),
        ),
        (
            "Encountered error for requestId 3: Cannot process new request: "
            "Prompt length (5056) exceeds maximum sequence length (2048)",
            errors.ContextLengthExceeded,
            overflow("Prompt length (5056) exceeds maximum sequence length (2048)"),
        ),
        (
            "Maximum queue size of 4 has been reached, please try again later",
            errors.QueueFull,
            "Maximum queue size of 4 has been reached, please try again later",
        ),
        (
            "[request id: r1] Exceeds maximum queue size",
            errors.QueueFull,
            "Exceeds maximum queue size",
        ),
        (
            LATER + "Requested beam width 4 is incorrect",
            errors.InvalidRequest,
            "Requested beam width 4 is incorrect",
        ),
        ("Incorrect sampling config", errors.InvalidRequest, "Incorrect sampling config"),
        (
            "[TensorRT-LLM][ERROR] Assertion failed: topK >= 0 (/src/sampling.cpp:42)\n1 frame",
            errors.InvalidRequest,
            "Assertion failed: topK >= 0",
        ),
        (
            "bad_words_list is not supported by openvino_genai",
            errors.InvalidRequest,
            "bad_words_list is not supported by openvino_genai",
        ),
        (
            "invalid argument: min_tokens is 9; ask for at most 4.",
            errors.InvalidRequest,
            "min_tokens is 9; ask for at most 4.",
        ),
        (
            "Invalid argument: Prompt length (9) exceeds maximum input length (8)",
            errors.ContextLengthExceeded,
            overflow("Prompt length (9) exceeds maximum input length (8)"),
        ),
        (
            "Executor failed process requestId 7 due to the following error: Encountered an error "
            "in forwardSync function: [TensorRT-LLM][ERROR] CUDA runtime error in "
            "::cudaEventSynchronize(get()): unspecified launch failure (/src/cudaEvent.h:66)",
            errors.EngineBroken,
            "Encountered an error in forwardSync function: [TensorRT-LLM][ERROR] CUDA runtime "
            "error in ::cudaEventSynchronize(get()): unspecified launch failure",
        ),
        (
            "Encountered an error in forwardAsync function: [TensorRT-LLM][ERROR] Assertion "
            "failed: Failed, NCCL error /src/runtime/ncclCommunicator.cpp:54 'unhandled system "
            "error (run with NCCL_DEBUG=INFO for details)'\n (/src/ncclCommunicator.cpp:54)\n1 f",
            errors.EngineBroken,
            "Encountered an error in forwardAsync function: [TensorRT-LLM][ERROR] Assertion "
            "failed: Failed, NCCL error /src/runtime/ncclCommunicator.cpp:54 'unhandled system "
            "error (run with NCCL_DEBUG=INFO for details)'",
        ),
        (
            "Encountered an error in forwardAsync function: [TensorRT-LLM][ERROR] CUDA runtime "
            "error in ::cudaMallocAsync(p, n, s): out of memory",
            errors.EngineUnavailable,
            "Encountered an error in forwardAsync function: [TensorRT-LLM][ERROR] CUDA runtime "
            "error in ::cudaMallocAsync(p, n, s): out of memory",
        ),
        (
            "Encountered an error in forwardAsync function: bad grammar: CUDA runtime error in x: "
            "unspecified launch failure",
            errors.EngineUnavailable,
            "Encountered an error in forwardAsync function: bad grammar: CUDA runtime error in x: "
            "unspecified launch failure",
        ),
        (
            "Encountered an error in forwardAsync function: CUDA error",
            errors.EngineUnavailable,
            "Encountered an error in forwardAsync function: CUDA error",
        ),
        (
            "Failed to process the request(s) for model 'tensorrt_llm_0_0', message: "
            "Stub process is not healthy.",
            errors.EngineUnavailable,
            None,
        ),
        (
            '[request id: r1] Adapter "chat" cannot be used: adapter_model.safetensors is damaged: '
            "its tensors have 9 bytes, and 8 are there; upload it again.",
            errors.AdapterUnavailable,
            'Adapter "chat" cannot be used: adapter_model.safetensors is damaged: its tensors have '
            "9 bytes, and 8 are there; upload it again.",
        ),
        (
            'Adapter "chat" cannot be used: Failed to load LoRA adapter: CUDA out of memory',
            errors.AdapterUnavailable,
            None,
        ),
        ("Request for unknown model: 'tensorrt_llm' is not found", errors.EngineUnavailable, None),
        (
            "Server is stopping, scheduler for model has stopped accepting new inference requests",
            errors.EngineUnavailable,
            None,
        ),
        (
            "[request id: r1] unexpected inference input 'x' for model 'tensorrt_llm'",
            errors.InternalError,
            "unexpected inference input 'x' for model 'tensorrt_llm'",
        ),
        ("Sparse list must not have odd length", errors.InternalError, None),
        ("Request timeout expired", errors.DeadlineExceeded, "Request timeout expired"),
        (
            "a text nobody has seen",
            errors.InternalError,
            "The engine failed: a text nobody has seen",
        ),
        ("", errors.InternalError, "The engine failed: no reason was given"),
    ],
)
def test_stream_texts(text, error, message):
    failure = from_stream_text(text)
    assert type(failure) is error
    assert message is None or failure.message == message


# The checks of cpp/tensorrt_llm/executor/samplingConfig.cpp and executor/requestImpl.h in
# NVIDIA/TensorRT-LLM, near 1.2.
CHECKS = (
    "beamWidth > 0 && beamWidth <= static_cast<SizeType32 const>(kMaxBeamWidth)",
    *("topK.value() >= 0", "topP.value() > 0.f", "topP.value() <= 1.f", "topPMin.value() <= 1.f"),
    *("topPResetIds.value() >= 0", "topPDecay.value() > 0.f", "temperature.value() >= 0.f"),
    *("minTokens.value() >= 0", "beamSearchDiversityRate.value() >= 0.f"),
    *("repetitionpenalty.value() > 0.f", "promptIgnoreLength.value() >= 0"),
    *("lengthPenalty.value() >= 0.f", "earlyStopping.value() >= 0"),
    *("noRepeatNgramSize.value() >= 0", "numReturnSequences.value() > 0"),
    "beamWidth == 1 || numReturnSequences.value() <= beamWidth",
    *("minP.value() >= 0.f && minP.value() <= 1.0f", "mMaxNewTokens > 0"),
)


@pytest.mark.parametrize("check", CHECKS)
def test_values_that_the_runtime_refuses_are_the_callers_fault(check: str) -> None:
    place = "(/src/tensorrt_llm/cpp/tensorrt_llm/executor/samplingConfig.cpp:271)"
    said = f"[TensorRT-LLM][ERROR] Assertion failed: {check} {place}\n1 frame"
    failure = from_stream_text(f"Cannot process new request: {said}")
    assert type(failure) is errors.InvalidRequest
    assert failure.message == f"Assertion failed: {check}"


def test_the_codes_are_those_of_grpc():
    assert {code.name: code.value for code in StatusCode} == {
        code.name: code.value[0] for code in grpc.StatusCode
    }


@pytest.mark.parametrize("status", list(StatusCode))
def test_every_status_becomes_one_of_ours(status):
    failure = from_status(status, "reasons")
    assert isinstance(failure, errors.TrussError)
    assert "reasons" in failure.message


@pytest.mark.parametrize(
    ("status", "details", "error", "retry_after_s"),
    [
        (StatusCode.UNAVAILABLE, "Connection refused", errors.EngineUnavailable, 5),
        (StatusCode.NOT_FOUND, "unknown model", errors.EngineUnavailable, 5),
        (StatusCode.INVALID_ARGUMENT, "no", errors.InvalidRequest, None),
        (
            StatusCode.INVALID_ARGUMENT,
            "Prompt length (9) exceeds maximum input length (8)",
            errors.ContextLengthExceeded,
            None,
        ),
        (StatusCode.RESOURCE_EXHAUSTED, "full", errors.QueueFull, 5),
        (StatusCode.DEADLINE_EXCEEDED, "late", errors.DeadlineExceeded, None),
        (StatusCode.INTERNAL, "CUDA error", errors.EngineUnavailable, 5),
        (StatusCode.UNKNOWN, "?", errors.InternalError, None),
    ],
)
def test_statuses(status, details, error, retry_after_s):
    failure = from_status(status, details)
    assert type(failure) is error
    assert failure.retry_after_s == retry_after_s
