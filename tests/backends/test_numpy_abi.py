"""Copy arrays for a stub built for NumPy 1."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from trtllm_backends.tensors import readable_copy


@pytest.mark.parametrize("dtype", ["int32", "uint64", "float32", "bool"])
def test_the_item_size_is_where_numpy_1_has_it(dtype):
    array = np.frombuffer(bytes(range(40)), dtype)
    copy = readable_copy(array)
    assert ctypes.c_int32.from_address(id(copy.dtype) + 32).value == array.dtype.itemsize
    assert bytes(memoryview(copy).cast("B")) == array.tobytes()
    assert copy.dtype is not array.dtype
    assert np.dtype(dtype).flags == np.dtype(np.dtype(dtype), copy=True).flags
