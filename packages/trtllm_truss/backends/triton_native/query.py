"""Reader of requests to `tensorrt_llm_bls`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from trtllm_truss.backends.tensors import Tensors
from trtllm_truss.backends.triton_native.tensors import prompt, words
from trtllm_truss.backends.triton_native.values import Value, from_array
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.request_fields import SAMPLING

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
        stop_words: words that end the answer and are not part of it.
        end_id: the id that ends the answer; None for the tokenizer's.
        stream: send text as it arrives.
        one_beam: True for a single beam, which can be streamed.
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


def read_query(inputs: Tensors, requested_outputs: Collection[str], *, decoupled: bool) -> Query:
    """Read and validate a request.

    Args:
        inputs: its tensors.
        requested_outputs: names.
        decoupled: whether the model may send several responses.

    Raises:
        InvalidRequest: it cannot be served.
    """
    prompt(inputs, "text_input")
    if not inputs.flag("exclude_input_in_output", True):
        raise InvalidRequest(
            "exclude_input_in_output is false, but an answer never repeats its prompt; leave it "
            "out.",
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
    return Query(
        prepared={theirs: values[ours] for ours, theirs in _PREPROCESSED.items() if ours in values},
        forwarded={_RENAMED.get(name, name): values[name] for name in values if name not in _OURS},
        stop_words=tuple(words(inputs, "stop_words")),
        end_id=inputs.integer("end_id", None),
        stream=stream,
        one_beam=one_beam,
        log_probs=inputs.flag("return_log_probs", False),
        outputs=tuple(name for name in requested_outputs if name != _OUR_OUTPUT),
    )
