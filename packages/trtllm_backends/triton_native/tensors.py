"""Parameters and tensors of the text models, and the text of the engine's responses."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from trtllm_backends.tensors import Parameters, Tensors, boolean, readable_copy, repair_reading
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.text.stop_words import StopWords
from trtllm_truss.text.text_stream import TextStream
from trtllm_truss.text.tokenizer import TextTokenizer, load_tokenizer
from trtllm_truss.triton.client.tensors import pack_texts


def _serialize(array: NDArray[Any]) -> NDArray[Any]:
    data = pack_texts(array.ravel().tolist())
    return readable_copy(np.frombuffer(data, np.uint8))


repair_reading()
pb_utils.serialize_byte_tensor = _serialize  # the stub calls it for every string tensor


def prompt(tensors: Tensors, name: str) -> str:
    """Return the only string of a mandatory tensor [1, 1].

    Raises:
        InvalidRequest: there are several strings, or none.
    """
    texts = tensors.texts(name)
    if len(texts) != 1:
        raise InvalidRequest(
            f"{name} holds {len(texts)} texts; send one prompt per request.", param=name
        )
    return texts[0]


def words(tensors: Tensors, name: str) -> list[str]:
    """Return the non-empty strings of a tensor; clients send an empty one for none."""
    return [word for word in tensors.texts(name) if word]


def from_numpy(name: str, array: NDArray[Any]) -> Any:
    """Return a Triton tensor; an array of objects contains bytes and becomes strings."""
    return pb_utils.Tensor(name, readable_copy(array))


def from_integer(name: str, value: int) -> Any:
    """Return an INT32 tensor [1, 1]."""
    return from_numpy(name, np.array([[value]], np.int32))


def from_ids(name: str, ids: Sequence[int]) -> Any:
    """Return an INT32 tensor [1, n]."""
    return from_numpy(name, np.array([ids], np.int32))


def from_texts(name: str, rows: Sequence[Sequence[str]]) -> Any:
    """Return a STRING tensor of rows of equal length."""
    return from_numpy(name, np.array([[text.encode() for text in row] for row in rows], np.object_))


def read_parameters(args: Mapping[str, str]) -> Parameters:
    """Read a model's parameters from the arguments of `initialize`."""
    return Parameters(json.loads(args["model_config"]))


def tokenizer(parameters: Parameters) -> TextTokenizer:
    return load_tokenizer(
        parameters.get("tokenizer_dir", Path, Path()),
        trust_remote_code=parameters.get("trust_remote_code", boolean, False),
    )


class TextAnswer:
    """Text of one response, with one or several beams.

    Args:
        stop_words: words that finish the output and are not part of it.
        end_ids: ids that finish the output and are hidden.

    Attributes:
        lengths: number of tokens of each beam so far.
    """

    def __init__(
        self, tokenizer: TextTokenizer, stop_words: Sequence[str], end_ids: Collection[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_words = StopWords(stop_words)
        self._end_ids = end_ids
        self._streams: list[TextStream] = []
        self.lengths: list[int] = []

    @property
    def stopped(self) -> bool:
        """Return True if a stop word has finished every beam, so that the engine can stop."""
        return bool(self._streams) and all(stream.stopped for stream in self._streams)

    def push(self, lists: Sequence[Sequence[int]]) -> list[str]:
        """Add the next ids of each beam, and return each beam's text that is now certain."""
        if not self._streams:
            self._streams = [TextStream(self._tokenizer, self._stop_words) for _ in lists]
            self.lengths = [0] * len(lists)
        self.lengths = [old + len(ids) for old, ids in zip(self.lengths, lists, strict=True)]
        return [
            stream.push(self._shown(ids)).text
            for stream, ids in zip(self._streams, lists, strict=True)
        ]

    def finish(self) -> list[str]:
        """Finish the output, and return each beam's text that was held back."""
        return [stream.finish() for stream in self._streams]

    def _shown(self, ids: Sequence[int]) -> Sequence[int]:
        return ids[:-1] if ids and ids[-1] in self._end_ids else ids


def beams(tokens: NDArray[Any], lengths: NDArray[Any]) -> list[list[int]]:
    """Return the ids of each beam, without padding.

    Args:
        tokens: INT32 [beams, tokens].
        lengths: INT32 [beams].
    """
    pairs = zip(tokens.tolist(), lengths.tolist(), strict=True)
    return [row[:length] for row, length in pairs]
