"""The model `tensorrt_llm_bls`: text in, text out.

Names, types and shapes are those of NVIDIA's model of this name. One event loop in one thread
serves all requests of a process, so that they run in the engine concurrently.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import traceback
from collections.abc import Collection, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import triton_python_backend_utils as pb_utils

from trtllm_truss.backends.kill_parent_on_death import KillParentOnDeath
from trtllm_truss.backends.tensors import Tensors
from trtllm_truss.backends.triton_native.answer import TextAnswer, beams
from trtllm_truss.backends.triton_native.calls import ENGINE_OUTPUTS, Models
from trtllm_truss.backends.triton_native.config import read_parameters, tokenizer
from trtllm_truss.backends.triton_native.query import Query, read_query
from trtllm_truss.backends.triton_native.reply import Reply
from trtllm_truss.backends.triton_native.values import Value, flag, from_array, to_array
from trtllm_truss.errors import InternalError, InvalidRequest, TrussError
from trtllm_truss.releases.tables import MODEL_NAME
from trtllm_truss.triton.client.tensors import random_number
from trtllm_truss.triton.server.ports import GRPC_ADDRESS_VARIABLE

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
        self._stub = threading.Lock()
        self._kill_on_death = KillParentOnDeath()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="answers", daemon=True).start()
        self._models = self._start(_connect(os.environ[GRPC_ADDRESS_VARIABLE])).result()
        self._answers: set[Future[None]] = set()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            reply = Reply(request.get_response_sender(), self._stub)
            try:
                with self._stub:
                    query = read_query(
                        Tensors.of(request),
                        request.requested_output_names(),
                        decoupled=self._decoupled,
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

    async def _serve(self, query: Query, reply: Reply) -> None:
        try:
            await self._answer(query, reply)
        except TrussError as error:
            reply.fail(error)
        except Exception as error:  # noqa: BLE001 - reported to the client
            pb_utils.Logger.log_error(traceback.format_exc())
            reply.fail(InternalError(f"The request could not be answered: {error}"))

    async def _answer(self, query: Query, reply: Reply) -> None:
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
