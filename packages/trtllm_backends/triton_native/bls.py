"""The model `tensorrt_llm_bls`: text in, text out.

Names, types and shapes are those of NVIDIA's model with this name. One event loop in one thread
serves all requests of a process, so they run concurrently in the engine. A response is one text, or
one chunk of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import traceback
from collections.abc import Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
import triton_python_backend_utils as pb_utils

from trtllm_backends.kill_parent_on_death import KillParentOnDeath
from trtllm_backends.tensors import Tensors
from trtllm_backends.triton_native.calls import (
    ENGINE_OUTPUTS,
    Models,
    Value,
    flag,
    from_array,
    to_array,
)
from trtllm_backends.triton_native.tensors import (
    TextAnswer,
    beams,
    from_numpy,
    from_texts,
    prompt,
    read_parameters,
    tokenizer,
    words,
)
from trtllm_truss.decoding import LEAST_TEMPERATURE, inputs_for, meant
from trtllm_truss.errors import InternalError, InvalidRequest, TrussError
from trtllm_truss.releases import MODEL_NAME
from trtllm_truss.request_fields import SAMPLING, Sampling
from trtllm_truss.triton.client.tensors import random_number
from trtllm_truss.triton.server import GRPC_ADDRESS_VARIABLE

_PREPROCESSED = {
    "text_input": "QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
}
_OURS = {*_PREPROCESSED, "stream", "exclude_input_in_output"}
_RENAMED = {row.name: row.tensors[0] for row in SAMPLING}
_OUR_OUTPUT = "text_output"


@dataclass(frozen=True)
class Query:
    """A validated request.

    Attributes:
        prepared: inputs of `preprocessing` by name.
        forwarded: inputs of the engine by name.
        stop_words: words that finish the output and are not part of it.
        end_id: the id that finishes the output; None for the tokenizer's.
        stream: send text as it arrives.
        one_beam: there is a single beam, which can be streamed.
        log_probs: return log probabilities.
        outputs: requested outputs other than the text.
    """

    prepared: dict[str, Value]
    forwarded: dict[str, Value]
    stop_words: tuple[str, ...]
    end_id: int | None
    stream: bool
    one_beam: bool
    log_probs: bool
    outputs: tuple[str, ...]


def read_query(
    inputs: Tensors,
    requested_outputs: Collection[str],
    *,
    decoupled: bool,
    refused: Mapping[str, str],
) -> Query:
    """Read and validate a request.

    Args:
        decoupled: the model may send several responses.
        refused: errors for inputs that the engine would misread, without the inputs' names.

    Raises:
        InvalidRequest: it cannot be served.
    """
    prompt(inputs, "text_input")
    if not inputs.flag("exclude_input_in_output", True):
        raise InvalidRequest(
            "exclude_input_in_output is false, but a response never repeats its prompt; leave "
            "it out.",
            param="exclude_input_in_output",
        )
    stream = inputs.flag("stream", False)
    if stream and not decoupled:
        raise InvalidRequest(
            "stream is true, but serving.triton_decoupled_mode is false, so a request has one "
            "response; leave stream out, or remove the setting.",
            param="stream",
        )
    one_beam = inputs.integer("beam_width", 1) in (0, 1)
    if stream and not one_beam:
        raise InvalidRequest(
            "stream is true with a beam_width above 1; beams are compared only at the end, so "
            "leave one of them out.",
            param="stream",
        )
    values = {name: from_array(array) for name, array in inputs}
    forwarded = {_RENAMED.get(name, name): values[name] for name in values if name not in _OURS}
    return Query(
        prepared={theirs: values[ours] for ours, theirs in _PREPROCESSED.items() if ours in values},
        forwarded=_as_meant(forwarded, inputs, refused),
        stop_words=tuple(words(inputs, "stop_words")),
        end_id=inputs.integer("end_id", None),
        stream=stream,
        one_beam=one_beam,
        log_probs=inputs.flag("return_log_probs", False),
        outputs=tuple(name for name in requested_outputs if name != _OUR_OUTPUT),
    )


_CHOOSES = {row.attribute: row for row in SAMPLING if row.effect in ("temperature", "limit")}


def _as_meant(
    forwarded: dict[str, Value], tensors: Tensors, refused: Mapping[str, str]
) -> dict[str, Value]:
    """Replace the sampling inputs with values that make the engine do what they mean."""
    given = Sampling(
        temperature=tensors.number("temperature", None),
        top_k=tensors.integer("top_k", None),
        top_p=tensors.number("top_p", None),
    )
    beams = max(1, tensors.integer("beam_width", 1))
    # Releases that do not replace a temperature of 0 receive one only if the client sent it.
    is_cold = given.temperature is not None and given.temperature < LEAST_TEMPERATURE
    sent = dict(forwarded)
    for attribute, value in inputs_for(meant(given, beams), zero_is_replaced=is_cold).items():
        row = _CHOOSES[attribute]
        sent.pop(row.tensors[0], None)
        if value is not None:
            kind = np.int32 if row.kind is int else np.float32
            sent[row.tensors[0]] = from_array(np.array([[value]], kind))
    for row in SAMPLING:
        if row.effect == "beams" and beams == 1:
            sent.pop(row.tensors[0], None)
        elif row.name in refused and row.changes(tensors.number(row.name, row.engine_default)):
            raise InvalidRequest(f"{row.name} {refused[row.name]}", param=row.name)
    return sent


_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_CANCELLATION_CHECK_S = 0.1  # the interval of the engine's own check


class TextReply:
    """The responses to one request.

    Args:
        sender: Triton's response sender.
        stub: lock held during calls to Triton, whose stub can crash when two threads make them.
    """

    def __init__(self, sender: Any, stub: threading.Lock) -> None:
        self._sender = sender
        self._stub = stub
        self._texts: list[str] = []
        self._extras: dict[str, Value] = {}
        self._checked_s = 0.0

    def add(self, texts: Sequence[str], extras: Mapping[str, Value]) -> None:
        """Add values from the engine.

        Args:
            texts: the next text of each beam.
            extras: further output tensors; later ones replace earlier ones with the same name.
        """
        self._texts = [old + new for old, new in zip_longest(self._texts, texts, fillvalue="")]
        self._extras.update(extras)

    def flush(self) -> None:
        """Send the collected values, if there is text."""
        if any(self._texts):
            self._send(0)

    def end(self) -> None:
        """Send the rest as the last response, even without text.

        Triton shows a flag without a response only to clients that request it.
        """
        self._send(_FINAL)

    def fail(self, error: TrussError) -> None:
        kinds = {400: pb_utils.TritonError.INVALID_ARG, 503: pb_utils.TritonError.UNAVAILABLE}
        kind = kinds.get(error.status, pb_utils.TritonError.INTERNAL)
        with self._stub:
            failure = pb_utils.TritonError(error.message, kind)
            self._sender.send(pb_utils.InferenceResponse(error=failure), _FINAL)

    def is_cancelled(self) -> bool:
        """Return True if the client has disconnected; asks Triton at most ten times a second."""
        now_s = time.monotonic()
        if now_s - self._checked_s < _CANCELLATION_CHECK_S:
            return False
        self._checked_s = now_s
        with self._stub:
            return bool(self._sender.is_cancelled())

    def _send(self, flags: int) -> None:
        with self._stub:
            tensors = [from_texts("text_output", [self._texts or [""]])]
            tensors += [from_numpy(name, to_array(value)) for name, value in self._extras.items()]
            self._sender.send(pb_utils.InferenceResponse(tensors), flags)
        self._texts, self._extras = [], {}


_Result = TypeVar("_Result")

_PREPROCESSING = "preprocessing"
_ENGINE_INPUTS = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "STOP_WORDS_IDS": "stop_words_list",
    "BAD_WORDS_IDS": "bad_words_list",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        parameters = read_parameters(args)
        self._decoupled = pb_utils.using_decoupled_model_transaction_policy(
            json.loads(args["model_config"])
        )
        self._engine = parameters.get("tensorrt_llm_model_name", str, MODEL_NAME)
        self._tokenizer = tokenizer(parameters)
        self._refused: dict[str, str] = parameters.get("refused_fields", json.loads, {})
        self._stub = threading.Lock()
        self._kill_on_death = KillParentOnDeath()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="answers", daemon=True).start()
        self._models = self._start(_connect(os.environ[GRPC_ADDRESS_VARIABLE])).result()
        self._answers: set[Future[None]] = set()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            reply = TextReply(request.get_response_sender(), self._stub)
            try:
                with self._stub:
                    query = read_query(
                        Tensors.of(request),
                        request.requested_output_names(),
                        decoupled=self._decoupled,
                        refused=self._refused,
                    )
            except InvalidRequest as error:
                reply.fail(error)
            else:
                answer = self._start(self._serve(query, reply))
                self._answers.add(answer)
                answer.add_done_callback(self._answers.discard)

    def finalize(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._kill_on_death.stop()

    def _start(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _serve(self, query: Query, reply: TextReply) -> None:
        try:
            await self._answer(query, reply)
        except TrussError as error:
            reply.fail(error)
        except Exception as error:  # noqa: BLE001 - reported to the client
            pb_utils.Logger.log_error(traceback.format_exc())
            reply.fail(InternalError(f"The request could not be answered: {error}"))

    async def _answer(self, query: Query, reply: TextReply) -> None:
        request_id = random_number()
        end_ids = self._tokenizer.eos_ids if query.end_id is None else ()
        answer = TextAnswer(self._tokenizer, query.stop_words, end_ids)
        inputs, outputs = await self._engine_inputs(query), (*ENGINE_OUTPUTS, *query.outputs)
        ended = False
        responses = self._models.generate(self._engine, request_id, inputs, outputs)
        async for values, last in responses:
            if ended:  # read to the end: an aborted call can crash Triton
                continue
            tokens, lengths = (to_array(values.pop(name))[0] for name in ENGINE_OUTPUTS)
            reply.add(answer.push(beams(tokens, lengths)), values)
            ended = answer.stopped or reply.is_cancelled()
            if query.stream and not (last or ended):
                reply.flush()
            if ended:
                await self._models.stop(self._engine, request_id)
        if not (query.stream or query.log_probs):
            reply.add([], _blank_log_probs(query.outputs, answer.lengths))
        reply.add(answer.finish(), {})
        reply.end()

    async def _engine_inputs(self, query: Query) -> dict[str, Value]:
        """Return the engine's inputs; without beams it streams, so that it can be stopped."""
        prepared = await self._models.ask(_PREPROCESSING, query.prepared, _ENGINE_INPUTS)
        inputs = {_ENGINE_INPUTS[name]: value for name, value in prepared.items() if value.data}
        return {**inputs, "streaming": flag(query.one_beam), **query.forwarded}


async def _connect(address: str) -> Models:
    return Models(address)


def _blank_log_probs(outputs: Collection[str], lengths: Sequence[int]) -> dict[str, Value]:
    """Return zeros; TensorRT-LLM up to 0.9 sent them unasked, and clients may expect them."""
    shapes = {
        "cum_log_probs": (1, len(lengths)),
        "output_log_probs": (1, len(lengths), max(lengths, default=0)),
    }
    return {
        name: from_array(np.zeros(shape, np.float32))
        for name, shape in shapes.items()
        if name in outputs
    }
