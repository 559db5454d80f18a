"""Log probabilities from the logits of NVIDIA's backend.

Log probabilities of alternatives and of prompts are tensors of this project's backends. NVIDIA's
backend sends logits instead, from which they are computed here. Facts from 0.19 on (near 0.19 and
1.0; ``createResult`` of llmRequest.cpp, handleContextLogits.cpp and handleGenerationLogits.cpp in
cpp/tensorrt_llm/batch_manager of NVIDIA/TensorRT-LLM, ``fillTritonResponse`` of
model_instance_state.cc):

* ``generation_logits`` of a stream are FP32 [1, new tokens, beams, vocabulary]: the model's own,
  copied before penalties and guides. Those of a non-streamed response are [1, beams,
  `request_output_len`, vocabulary], and may be masked by a guide.
* ``context_logits`` are FP32 [1, prompt, vocabulary] in every response, so that a stream would
  repeat them with each token. The last row belongs to the first generated token.
* The vocabulary is padded to a multiple of the ranks; the padding's logits mean nothing.
* The executor allocates both for the whole prompt and all of `request_output_len`. It refuses a
  request for logits that the build did not gather (``fetchNewRequests`` of executorImpl.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trtllm_truss.triton.client.engine_messages import EngineChunk, EngineRequest, Logits
from trtllm_truss.triton.client.grpc_connection import Payload
from trtllm_truss.triton.protobuf import service_pb2

_MEMORY_BYTES = 2**29
"""Limit of the logits of all requests.

The executor, Triton, its gRPC message and this process hold a copy each, up to 2 GiB in total. A
stream of HTTP/2 has room for 2 GiB, at least half of which earlier requests leave free.
"""
_FLOAT_BYTES = 4


def logits_in_memory(vocabulary: int) -> int:
    """Return how many tokens may have their logits in memory: 1,046 for Llama 3, 4,194 for 2."""
    return max(1, _MEMORY_BYTES // (_FLOAT_BYTES * vocabulary))


LARGE_BYTES = 2**16
"""Larger tensors are cut out of their message.

A parser would copy logits, for tenths of a second.
"""

_RESPONSE, _RAW = 2, 6  # fields of ModelStreamInferResponse and of ModelInferResponse


def cut_large(
    payload: Payload,
) -> tuple[service_pb2.ModelInferResponse, dict[int, memoryview]]:
    """Parse a serialized ``ModelStreamInferResponse`` without its large tensors.

    Returns:
        The response with empty tensors in their places, and the cut tensors by index.

    Raises:
        ValueError: it contains no response.
    """
    (number, _, body), *rest = _fields(memoryview(payload))
    if number != _RESPONSE or rest:
        raise ValueError("it contains more than a response")
    large: dict[int, memoryview] = {}
    kept: list[bytes | memoryview] = []
    tensors = 0
    for number, whole, value in _fields(body):
        if number == _RAW and len(value) > LARGE_BYTES:
            large[tensors] = value
            kept.append(bytes((_RAW << 3 | 2, 0)))
        else:
            kept.append(whole)
        tensors += number == _RAW
    return service_pb2.ModelInferResponse.FromString(b"".join(kept)), large


def _fields(view: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield number, whole and value of each field of a message; all must be length-delimited."""
    start = 0
    try:
        while start < len(view):
            tag, at = _varint(view, start)
            size, at = _varint(view, at)
            if tag & 7 != 2 or at + size > len(view):
                raise ValueError("a field has no length")
            yield tag >> 3, view[start : at + size], view[at : at + size]
            start = at + size
    except IndexError:
        raise ValueError("a field is cut off") from None


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return a varint and the offset after it."""
    value = shift = 0
    while True:
        byte, at = view[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


_ROWS = 8  # at once: the temporary arrays stay in the processor's cache


def with_log_probs(chunk: EngineChunk, request: EngineRequest) -> EngineChunk:
    """Compute log probabilities and alternatives from logits; takes milliseconds per row.

    Raises:
        ValueError: the logits do not match the tokens, or are not numbers.
    """
    if chunk.logits is None:
        if chunk.token_ids:
            raise ValueError("some tokens have no logits")
        return chunk
    if request.logits == "generation":
        log_probs, alternatives = _scored(chunk.logits, chunk.token_ids, request)
        return replace(chunk, logits=None, log_probs=log_probs, alternatives=alternatives)
    prompt, token = request.input_ids[1:], chunk.token_ids
    log_probs, alternatives = _scored(chunk.logits, (*prompt, *(token or (0,))), request)
    scored, end = len(prompt), len(prompt) + len(token)
    return replace(
        chunk,
        logits=None,
        log_probs=log_probs[scored:end],
        alternatives=alternatives[scored:end],
        prompt_log_probs=log_probs[:scored],
        prompt_alternatives=alternatives[:scored],
    )


def _scored(
    logits: Logits, ids: Sequence[int], request: EngineRequest
) -> tuple[tuple[float, ...], tuple[tuple[tuple[int, float], ...], ...]]:
    import numpy as np  # only requests for alternatives need it

    if logits.rows != len(ids) or logits.width < request.vocab_size:
        raise ValueError(f"its logits are {logits.rows} × {logits.width} for {len(ids)} tokens")
    values = np.frombuffer(logits.values, "<f4")
    values = values.reshape(logits.rows, logits.width)[:, : request.vocab_size]
    log_probs: list[float] = []
    alternatives: list[tuple[tuple[int, float], ...]] = []
    for start in range(0, logits.rows, _ROWS):
        rows = values[start : start + _ROWS]
        chosen = np.array(ids[start : start + _ROWS])[:, None]
        largest = rows.max(axis=1, keepdims=True)
        sums = np.exp(rows - largest).sum(axis=1, keepdims=True, dtype=np.float64)
        totals = largest + np.log(sums)
        if not np.isfinite(totals).all():
            raise ValueError("its logits are not numbers")
        log_probs += (np.take_along_axis(rows, chosen, 1) - totals)[:, 0].tolist()
        if number := min(request.top_log_probs, request.vocab_size):
            top = np.argpartition(rows, -number, axis=1)[:, -number:]
            found = np.take_along_axis(rows, top, 1) - totals
            order = np.lexsort((top, -found))
            top, found = (np.take_along_axis(each, order, 1) for each in (top, found))
            alternatives += [
                tuple(zip(*row, strict=True))
                for row in zip(top.tolist(), found.tolist(), strict=True)
            ]
    return tuple(log_probs), tuple(alternatives)
