"""Tensors independent of Triton's stub, as its protocol carries them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from trtllm_truss.triton.client.tensors import pack_texts


class Value(NamedTuple):
    """One tensor without its name.

    Attributes:
        datatype: as in Triton's protocol, such as INT32.
        shape: the batch dimension included.
        data: little-endian bytes of the values, strings each after their length.
    """

    datatype: str
    shape: tuple[int, ...]
    data: bytes


def from_array(array: NDArray[Any]) -> Value:
    """Convert an array; objects are bytes and become strings."""
    is_text = array.dtype == np.object_
    data = pack_texts(array.ravel().tolist()) if is_text else array.tobytes()
    return Value(np_to_triton_dtype(array.dtype), array.shape, data)


def to_array(value: Value) -> NDArray[Any]:
    """Convert a value other than text."""
    return np.frombuffer(value.data, triton_to_np_dtype(value.datatype)).reshape(value.shape)


def integer(number: int) -> Value:
    """Return INT32 [1, 1]."""
    return from_array(np.array([[number]], np.int32))


def flag(truth: bool) -> Value:
    """Return BOOL [1, 1]."""
    return from_array(np.array([[truth]], np.bool_))
