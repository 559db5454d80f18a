"""Requests to the engine and its responses as Triton's protobuf messages.

Tensors travel as ``raw_input_contents`` and ``raw_output_contents``: little-endian bytes in the
order of ``inputs`` and ``outputs``. Shapes include the batch dimension, which is always 1.

Up to 0.9, a request's id is the number at the start of its text (``stoul``): 0.7 refuses a text
without one, 0.8 and 0.9 use its hash. A number in flight is refused, and ``stop`` ends the request
with that number, whoever sent it. Later releases accept any text. Source:
``inflight_batcher_llm/src/utils.cc:142-174`` and ``work_items_queue.cc:59`` in
triton-inference-server/tensorrtllm_backend, v0.7.0 to v0.9.0; ``model_instance_state.cc``
(``mTritonRequestIdToRequestIds``) from v0.10.0 on.
"""

from __future__ import annotations

import secrets
import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from trtllm_truss.decoding import inputs_for, meant
from trtllm_truss.releases import (
    CACHED_TOKENS,
    INPUTS,
    OWN_INPUTS,
    OWN_OUTPUTS,
    REUSED_BLOCKS,
    holds,
    rows_for,
)
from trtllm_truss.request_fields import SAMPLING, Sampling
from trtllm_truss.requests import GUIDE_BYTES, UNREPEATABLE
from trtllm_truss.triton.client.engine_messages import EngineChunk, EngineRequest, Logits
from trtllm_truss.triton.client.failures import from_stream_text
from trtllm_truss.triton.client.grpc_connection import Payload
from trtllm_truss.triton.client.logits import LARGE_BYTES, cut_large
from trtllm_truss.triton.protobuf import service_pb2


def takes_numbers_only(version: str | None) -> bool:
    """Return True for TensorRT-LLM versions that read ids as numbers; None means unknown."""
    return not holds("ids_are_text", version, unknown=True)


def random_number() -> str:
    """Return an id that every release accepts and no other request has."""
    return str(secrets.randbelow(2**64 - 1) + 1)


class EngineInputs(NamedTuple):
    """The inputs that a release's backend accepts.

    Attributes:
        declared: inputs that the server's ``config.pbtxt`` declares. If a field has an older and a
            newer name, every declared one is sent; the backend reads the one it knows.
        zero_is_replaced: see `decoding.inputs_for`.
    """

    declared: frozenset[str]
    zero_is_replaced: bool

    @classmethod
    def of(cls, version: str | None) -> EngineInputs:
        """Return the inputs of a TensorRT-LLM version; None means unknown.

        Inputs of our own backends are included: requests that need them reach no other engine.
        """
        rows = (*rows_for(INPUTS, version), *OWN_INPUTS)
        replaces = holds("replaces_zero_temperature", version)
        return cls(frozenset(row.name for row in rows), replaces)


_PROTOCOL_DTYPES = {"STRING": "BYTES"}  # where config.pbtxt and the protocol differ
_DTYPES = {
    tensor.name: _PROTOCOL_DTYPES.get(tensor.dtype, tensor.dtype)
    for tensor in (*INPUTS, *OWN_INPUTS)
}
_SCALARS = {
    "INT32": struct.Struct("<i"),
    "UINT64": struct.Struct("<Q"),
    "FP32": struct.Struct("<f"),
    "BOOL": struct.Struct("<?"),
}
_serialize: Callable[[service_pb2.ModelInferRequest], bytes] = (
    service_pb2.ModelInferRequest.SerializeToString
)
_FINAL = "triton_final_response"
_TOP, _ASKS_FOR_PROMPT = "num_top_logprobs", "return_prompt_logprobs"
_TOP_TYPES = {tensor.name: {"INT32": "i", "FP32": "f"}[tensor.dtype] for tensor in OWN_OUTPUTS}
_TOP_IDS, _TOP_VALUES, _PROMPT, _PROMPT_TOP_IDS, _PROMPT_TOP_VALUES, _ = _TOP_TYPES
_TOPS = {_TOP_IDS, _TOP_VALUES, _PROMPT_TOP_IDS, _PROMPT_TOP_VALUES}
_REUSE = (CACHED_TOKENS.name, REUSED_BLOCKS.name)
_ASKS_FOR_BLOCKS = ("return_perf_metrics", "return_kv_cache_reuse_stats")
_SHARED_PARTS = 256
_SHARED_INPUTS = (
    ("request_output_len", "max_tokens"),
    ("end_id", "end_id"),
    ("pad_id", "pad_id"),
    ("streaming", "streaming"),
    ("beam_width", "beam_width"),
    ("return_log_probs", "return_log_probs"),
    ("lora_task_id", "lora_task_id"),
    *(
        (name, f"sampling.{row.attribute}")
        for row in SAMPLING
        if row.effect != "seed"
        for name in row.tensors
    ),
)
"""Scalar inputs that many requests share, and their attributes and values."""
_SHARED_ATTRIBUTES = tuple(dict.fromkeys(attribute for _, attribute in _SHARED_INPUTS))
_shared_values = attrgetter(*_SHARED_ATTRIBUTES)
_SHARED_PLACES = [(name, _SHARED_ATTRIBUTES.index(attribute)) for name, attribute in _SHARED_INPUTS]
_PLACES = {
    row.attribute: _SHARED_ATTRIBUTES.index(f"sampling.{row.attribute}")
    for row in SAMPLING
    if row.effect != "seed"
}
_CHOICE = {
    _PLACES[row.attribute]: row.attribute
    for row in SAMPLING
    if row.effect in ("temperature", "limit")
}
"""Indices of the sampling fields among `_SHARED_ATTRIBUTES`."""
_BEAMS = _SHARED_ATTRIBUTES.index("beam_width")
_LEFT_OUT = {"beam_width": 1, "return_log_probs": False}
"""Values that are omitted because the engine assumes them."""
_SEEDS = [name for row in SAMPLING if row.effect == "seed" for name in row.tensors]
_GUIDE = ("guided_decoding_guide_type", "guided_decoding_guide")
_OUTPUTS = ("output_ids", "sequence_length")
_LOG_PROBS = ("cum_log_probs", "output_log_probs")
_LOGITS = ("generation_logits", "context_logits")
_READ = {*_OUTPUTS, *_LOG_PROBS, *_LOGITS, *_TOPS, _PROMPT, *_REUSE}
_RAW_HEAD_BYTES = 2  # tag and length of a scalar, in the message's last field


def encode_request(request: EngineRequest, *, model_name: str, known: EngineInputs) -> bytes:
    """Serialize the message for one generation; fields that are None are omitted.

    Serialized messages concatenate: most requests share a part, which is serialized once. The
    sampling fields are converted to values that make the engine do what they mean (`decoding`).

    Args:
        model_name: Triton's name of the model.
        known: inputs that the engine's release reads.
    """
    length = len(request.input_ids)
    own = [("input_lengths", length)]
    if (seed := request.sampling.seed) is not None:
        own += [(name, seed) for name in _SEEDS if name in known.declared]
    names = tuple([name for name, _ in own])
    shared = _encode_shared(model_name, known, _shared_values(request), names, _outputs(request))
    raw = [_pack_scalar(name, value) for name, value in own]
    raw.append(pack_ids(request.input_ids))
    message = service_pb2.ModelInferRequest(id=request.request_id, raw_input_contents=raw)
    _add_words(message, request)
    _add_bias(message, request)
    _add_guide(message, request)
    if not request.is_repeatable:
        message.parameters[UNREPEATABLE].bool_param = True
    if request.logits is not None:
        name = f"return_{request.logits}_logits"
        _add(message, name, [1, 1], _pack_scalar(name, True))
    elif request.top_log_probs:
        _add(message, _TOP, [1, 1], _pack_scalar(_TOP, request.top_log_probs))
    if request.prompt_log_probs and request.logits is None:
        _add(message, _ASKS_FOR_PROMPT, [1, 1], _pack_scalar(_ASKS_FOR_PROMPT, True))
    for name, value in request.trace_headers.items():
        message.parameters[name].string_param = value
    return shared + _encode_ids_head(length) + _serialize(message)


def encode_stop(request_id: str, *, model_name: str) -> bytes:
    """Serialize the message that stops the request in flight with the same id.

    The stopped request ends with an empty final response. The mandatory inputs must be present;
    their values are not read. their values are not read.
    """
    message = service_pb2.ModelInferRequest(id=request_id)
    _add(message, "input_ids", [1, 1], pack_ids([0]))
    return _encode_stop_head(model_name) + _serialize(message)


@lru_cache(1)
def _encode_stop_head(model_name: str) -> bytes:
    message = _begin(model_name, _OUTPUTS)
    for name, value in (("input_lengths", 1), ("request_output_len", 1), ("stop", True)):
        _add(message, name, [1, 1], _pack_scalar(name, value))
    return _serialize(message)


@lru_cache(_SHARED_PARTS)
def _encode_shared(
    model_name: str,
    known: EngineInputs,
    values: tuple[Any, ...],
    names: tuple[str, ...],
    outputs: tuple[str, ...],
) -> bytes:
    """Serialize the part that equal requests share.

    Args:
        known: declared inputs; others are omitted.
        values: values of `_SHARED_ATTRIBUTES`; None is omitted.
        names: further scalar inputs, whose values follow in the message. Their values follow in the
            message.
    """
    message = _begin(model_name, outputs)
    given = [*values]
    choice = tuple([values[place] for place in _CHOICE])
    for place, value in _as_meant(values[_BEAMS], choice, known.zero_is_replaced):
        given[place] = value
    scalars = [(name, given[place]) for name, place in _SHARED_PLACES]
    if REUSED_BLOCKS.name in outputs:
        scalars += [(name, True) for name in _ASKS_FOR_BLOCKS]
    for name, value in (*scalars, ("exclude_input_in_output", True)):
        if value is not None and name in known.declared and value != _LEFT_OUT.get(name):
            _add(message, name, [1, 1], _pack_scalar(name, value))
    for name in names:
        message.inputs.add(name=name, datatype=_DTYPES[name], shape=[1, 1])
    return _serialize(message)


@lru_cache(_SHARED_PARTS)
def _as_meant(
    beams: int, choice: tuple[Any, ...], zero_is_replaced: bool
) -> list[tuple[int, float | None]]:
    """Return indices into `_SHARED_ATTRIBUTES`, and the values to send for them.

    A length penalty has no meaning without beams; the backends of 1.2 would read another parameter.

    Args:
        choice: values of `_CHOICE`.
    """
    decoding = meant(Sampling(**dict(zip(_CHOICE.values(), choice, strict=True))), beams)
    sent = inputs_for(decoding, zero_is_replaced=zero_is_replaced)
    if beams == 1:
        sent["length_penalty"] = None
    return [(_PLACES[name], value) for name, value in sent.items()]


def _begin(model_name: str, outputs: Iterable[str]) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name=model_name)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name in outputs:
        message.outputs.add(name=name)
    return message


@lru_cache(_SHARED_PARTS)
def _encode_ids_head(length: int) -> bytes:
    """Serialize the head of ``input_ids``, whose values follow in the message."""
    message = service_pb2.ModelInferRequest()
    message.inputs.add(name="input_ids", datatype=_DTYPES["input_ids"], shape=[1, length])
    return _serialize(message)


def decode_response(
    response: service_pb2.ModelInferResponse, large: Mapping[int, memoryview] | None = None
) -> EngineChunk:
    """Read one response; of several beams, take the first (best) one.

    Args:
        large: tensors cut out of it (`cut_large`).

    Raises:
        ValueError: the tensors do not match.
    """
    tokens: tuple[int, ...] = ()
    length: int | None = None
    cum_log_prob: float | None = None
    log_probs: tuple[float, ...] = ()
    prompt: tuple[float, ...] = ()
    beams = 1
    cached: int | None = None
    top: dict[str, tuple[int, tuple[float, ...]]] = {}
    logits: Logits | None = None
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    for place, (output, raw) in enumerate(pairs):
        name = output.name
        raw = large.get(place, raw) if large else raw
        if name == "output_ids":  # [1, beams, tokens]
            tokens = struct.unpack_from(f"<{output.shape[2]}i", raw)
        elif name == "sequence_length":  # [1, beams]
            (length,) = struct.unpack_from("<i", raw)
        elif name == "cum_log_probs":  # [1, beams]
            (cum_log_prob,) = struct.unpack_from("<f", raw)
        elif name == "output_log_probs":  # [1, beams, tokens]
            log_probs = struct.unpack_from(f"<{output.shape[2]}f", raw)
            beams = output.shape[1]
        elif name in _TOPS:  # [1, beams, tokens, alternatives], without beams for the prompt
            width, kind = output.shape[-1], _TOP_TYPES[name]
            top[name] = width, struct.unpack_from(f"<{output.shape[-2] * width}{kind}", raw)
        elif name == _PROMPT:  # [1, tokens - 1]
            prompt = struct.unpack_from(f"<{output.shape[1]}f", raw)
        elif name in _REUSE:  # [1, 1]
            (cached,) = struct.unpack_from("<i", raw)
        elif name in _LOGITS:  # [1, tokens, vocabulary], for generated tokens [1, tokens, 1, …]
            logits = Logits(raw, output.shape[1], output.shape[-1])
    # Shorter beams are padded, and sequence_length gives their length. For a single beam, streamed
    # with the log probabilities of all its tokens, it counts the new tokens.
    return EngineChunk(
        token_ids=tokens if length is None else tokens[:length],
        final=_FINAL in response.parameters and response.parameters[_FINAL].bool_param,
        cum_log_prob=cum_log_prob,
        log_probs=log_probs[:length] if beams > 1 else log_probs,
        alternatives=_alternatives(top, _TOP_IDS, _TOP_VALUES),
        prompt_log_probs=prompt,
        prompt_alternatives=_alternatives(top, _PROMPT_TOP_IDS, _PROMPT_TOP_VALUES),
        cached=cached,
        logits=logits,
    )


def unread_bytes(response: service_pb2.ModelInferResponse) -> int:
    """Return the size of the end of a serialized response that `decode_response` ignores.

    TensorRT-LLM's backend sends its metrics of a request at the end of each response.
    """
    size = 0
    for output, raw in zip(
        reversed(response.outputs), reversed(response.raw_output_contents), strict=True
    ):
        if output.name in _READ:
            break
        size += len(raw) + _RAW_HEAD_BYTES
    return size


_NO_TOP: tuple[int, tuple[float, ...]] = (0, ())


def _alternatives(
    tensors: Mapping[str, tuple[int, tuple[float, ...]]], ids_name: str, values_name: str
) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Group the alternatives by token, without padding.

    Raises:
        ValueError: ids and values differ in number.
    """
    if not tensors:
        return ()
    (width, ids), (_, values) = tensors.get(ids_name, _NO_TOP), tensors.get(values_name, _NO_TOP)
    pairs = [(int(token), value) for token, value in zip(ids, values, strict=True)]
    return tuple(
        tuple(pair for pair in pairs[start : start + width] if pair[0] >= 0)
        for start in range(0, len(pairs), width or 1)
    )


def pack_ids(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def pack_words(words: Sequence[Sequence[int]]) -> bytes:
    """Pack word lists as the backend's tensor INT32 [2, n].

    Row 0 holds all ids one after the other, row 1 the offset after each word's last id, padded with
    -1: ``[[5, 7, 3], [9, 2]]`` becomes ``[[5, 7, 3, 9, 2], [3, 5, -1, -1, -1]]``.
    """
    flat = array("i")
    ends = array("i")
    for word in words:
        flat.extend(word)
        ends.append(len(flat))
    ends.extend([-1] * (len(flat) - len(ends)))
    return flat.tobytes() + ends.tobytes()


def pack_texts(texts: Iterable[bytes]) -> bytes:
    """Pack the elements of a BYTES tensor, each prefixed by its length in four bytes."""
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def _pack_scalar(name: str, value: float) -> bytes:
    return _SCALARS[_DTYPES[name]].pack(value)


def _outputs(request: EngineRequest) -> tuple[str, ...]:
    names: tuple[str, ...] = _OUTPUTS
    if request.logits is not None:
        names = (*names, f"{request.logits}_logits")
        return names if request.cache_report is None else (*names, request.cache_report.output)
    if request.return_log_probs:
        names = (*names, *_LOG_PROBS)
    if request.top_log_probs:
        names = (*names, _TOP_IDS, _TOP_VALUES)
    if request.prompt_log_probs:
        names = (*names, _PROMPT)
        if request.top_log_probs:
            names = (*names, _PROMPT_TOP_IDS, _PROMPT_TOP_VALUES)
    return names if request.cache_report is None else (*names, request.cache_report.output)


def _add_words(message: service_pb2.ModelInferRequest, request: EngineRequest) -> None:
    for name, words in (
        ("stop_words_list", request.stop_words),
        ("bad_words_list", request.bad_words),
    ):
        if words:
            _add(message, name, [1, 2, sum(map(len, words))], pack_words(words))


def _add_bias(message: service_pb2.ModelInferRequest, request: EngineRequest) -> None:
    if not request.logit_bias:
        return
    bias = array("f", bytes(4 * request.vocab_size))
    for token_id, value in request.logit_bias.items():
        bias[token_id] = value
    _add(message, "embedding_bias", [1, request.vocab_size], bias.tobytes())


def _add_guide(message: service_pb2.ModelInferRequest, request: EngineRequest) -> None:
    if request.guide is None:
        return
    for name, text in zip(_GUIDE, request.guide[:2], strict=True):
        _add(message, name, [1, 1], pack_texts([text.encode()]))
    if request.guide_bytes is not None:
        message.parameters[GUIDE_BYTES].int64_param = request.guide_bytes


def _add(message: service_pb2.ModelInferRequest, name: str, shape: list[int], raw: bytes) -> None:
    message.inputs.add(name=name, datatype=_DTYPES[name], shape=shape)
    message.raw_input_contents.append(raw)


_parse = service_pb2.ModelStreamInferResponse.FromString
_ID = struct.Struct("<i")
_ID_BYTES = _ID.size
_FINAL_CHUNK = EngineChunk((), final=True)
_MOST_KINDS = 8
"""Sizes of messages, in tokens, that a reader caches."""


class ResponseReader:
    """Parses the serialized ``ModelStreamInferResponse`` messages of one call.

    While tokens stream, a message differs from an earlier one with the same number of tokens in the
    tokens' bytes alone. The first message, and the last one with or without a token, also differ
    from those of another request in the bytes of the id. Such a message is recognised by its bytes
    instead of being parsed, in a tenth of the time. A message that reports the KV cache is
    recognised within its request only, and by its bytes before the metrics that nothing reads:
    speculation changes them at each step.

    Args:
        request_id: the only id accepted; None accepts any.
        like: reader of an earlier request with similar messages.
    """

    __slots__ = ("_around", "_final", "_last", "_own", "_request_id")

    def __init__(self, request_id: str | None = None, like: ResponseReader | None = None) -> None:
        self._request_id = request_id
        # Bytes before and after the tokens, and the number of further tokens; by the size in bytes.
        self._around: dict[int, tuple[bytes, bytes, int]] = {}
        self._own: set[int] = set()  # sizes of messages that another request must parse
        self._last = b"", b""  # bytes before and after the token of a final message
        self._final: bytes | None = None
        if like is not None and request_id and like._request_id:
            ids = like._request_id.encode(), request_id.encode()
            if len(ids[0]) == len(ids[1]):
                self._around = {
                    size: (head.replace(*ids), tail.replace(*ids), unread)
                    for size, (head, tail, unread) in like._around.items()
                    if size not in like._own
                }
                self._last = like._last[0].replace(*ids), like._last[1].replace(*ids)
                self._final = like._final and like._final.replace(*ids)

    def read_tokens(self, payload: Payload, into: array[int]) -> bool:
        """Append the tokens of a message whose other bytes are known.

        Return False for other messages.
        """
        around = self._around.get(len(payload))
        if around is None:
            return False
        head, tail, unread = around
        end = len(payload) - len(tail) - unread
        if not (payload.startswith(head) and payload.startswith(tail, end)):
            return False
        into.frombytes(payload[len(head) : end])
        return True

    def read(self, payload: Payload) -> EngineChunk:
        """Parse any message.

        Raises:
            TrussError: the message contains an error.
            ValueError: its tensors do not match, or it belongs to another request.
        """
        if payload == self._final:
            return _FINAL_CHUNK
        head, tail = self._last
        token = payload[len(head) : len(head) + _ID_BYTES]
        if head and payload == head + token + tail and len(token) == _ID_BYTES:
            return EngineChunk(_ID.unpack(token), final=True)
        large: dict[int, memoryview] = {}
        if len(payload) > LARGE_BYTES:
            response, large = cut_large(payload)
        else:
            message = _parse(payload)
            if message.error_message:
                raise from_stream_text(message.error_message)
            response = message.infer_response
        if self._request_id is not None and response.id != self._request_id:
            raise ValueError(f"its id is {response.id!r} instead of {self._request_id!r}")
        chunk = decode_response(response, large)
        if isinstance(payload, bytes):
            self._remember(payload, chunk, 0 if chunk.cached is None else unread_bytes(response))
        return chunk

    def _remember(self, payload: bytes, chunk: EngineChunk, unread: int) -> None:
        if chunk == _FINAL_CHUNK:
            self._final = payload
        if not chunk.token_ids or chunk.log_probs or chunk.logits is not None:
            return
        tokens, end = pack_ids(chunk.token_ids), len(payload) - unread
        start = payload.find(tokens)
        if start != payload.rfind(tokens, 0, end):  # they are indistinguishable from the rest
            return
        head, tail = payload[:start], payload[start + len(tokens) : end]
        if not chunk.final and len(self._around) < _MOST_KINDS:
            self._around[len(payload)] = head, tail, unread
            (self._own.discard if chunk.cached is None else self._own.add)(len(payload))
        elif chunk.final and len(chunk.token_ids) == 1 and chunk.cached is None:
            self._last = head, tail
