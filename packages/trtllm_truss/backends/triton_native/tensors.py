"""Triton's tensors as NumPy arrays and Python values, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from trtllm_truss.backends.numpy_abi import readable_copy, repair_reading
from trtllm_truss.errors import InvalidRequest
from trtllm_truss.triton.client.tensors import pack_texts


def _serialize(array: NDArray[Any]) -> NDArray[Any]:
    data = pack_texts(array.ravel().tolist())
    return readable_copy(np.frombuffer(data, np.uint8))


repair_reading()
pb_utils.serialize_byte_tensor = _serialize  # the stub calls it for every string tensor


class Inputs:
    """The input tensors of one request by name.

    Raises:
        InvalidRequest: from every method, if a tensor is missing or holds other values.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = {tensor.name(): tensor for tensor in tensors}

    def text(self, name: str) -> str:
        """Return the only string of a mandatory tensor [1, 1]."""
        values = self.texts(name)
        if len(values) != 1:
            raise InvalidRequest(
                f"{name} holds {len(values)} texts; send one prompt per request.", param=name
            )
        return values[0]

    def texts(self, name: str) -> list[str]:
        """Return all strings of a tensor, in order; none if it is absent."""
        try:
            return [value.decode() for value in self._values(name)]
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{name} is not UTF-8; send text.", param=name) from error

    def words(self, name: str) -> list[str]:
        """Return the non-empty strings of a tensor: clients send an empty one for none."""
        return [word for word in self.texts(name) if word]

    def integer(self, name: str) -> int | None:
        """Return the only integer of a tensor; None if it is absent."""
        value = self._only_value(name)
        return None if value is None else int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._only_value(name)
        return default if value is None else bool(value)

    def _only_value(self, name: str) -> Any:
        values = self._values(name)
        if len(values) > 1:
            raise InvalidRequest(
                f"{name} holds {len(values)} values; send one prompt per request.", param=name
            )
        return values[0] if values else None

    def _values(self, name: str) -> list[Any]:
        tensor = self.tensors.get(name)
        return [] if tensor is None else to_numpy(tensor).ravel().tolist()


def to_numpy(tensor: Any) -> NDArray[Any]:
    """Return the values of a Triton tensor; strings are bytes in an array of objects."""
    return np.asarray(tensor.as_numpy())


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
