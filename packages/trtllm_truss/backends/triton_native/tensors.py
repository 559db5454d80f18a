"""Texts and numbers from Triton's tensors, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from trtllm_truss.backends.numpy_abi import readable_copy, repair_reading
from trtllm_truss.backends.tensors import Tensors
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.triton.client.tensors import pack_texts


def _serialize(array: NDArray[Any]) -> NDArray[Any]:
    data = pack_texts(array.ravel().tolist())
    return readable_copy(np.frombuffer(data, np.uint8))


repair_reading()
pb_utils.serialize_byte_tensor = _serialize  # the stub calls it for every string tensor


def prompt(tensors: Tensors, name: str) -> str:
    """Return the only string of a mandatory tensor [1, 1].

    Raises:
        InvalidRequest: there are more, or none.
    """
    texts = tensors.texts(name)
    if len(texts) != 1:
        raise InvalidRequest(
            f"{name} holds {len(texts)} texts; send one prompt per request.", param=name
        )
    return texts[0]


def words(tensors: Tensors, name: str) -> list[str]:
    """Return the non-empty strings of a tensor: clients send an empty one for none."""
    return [word for word in tensors.texts(name) if word]


def from_numpy(name: str, array: NDArray[Any]) -> Any:
    """Return a Triton tensor; an array of objects holds bytes and becomes strings."""
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
