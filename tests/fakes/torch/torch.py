"""The part of PyTorch that XGrammar uses to compile guides and fill a bitmask, on NumPy."""

from __future__ import annotations

import numpy as np

int32 = np.dtype(np.int32)


class _Device:
    type, index = "cpu", 0


class Tensor:
    device = _Device()

    def __init__(self, array):
        self._array = array
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def data_ptr(self):
        return self._array.ctypes.data

    def numpy(self):
        return self._array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


LongTensor = FloatTensor = Tensor


def tensor(value, dtype):
    return value


def full(shape, value, dtype):
    return Tensor(np.full(shape, value, dtype=dtype))
