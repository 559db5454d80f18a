"""INT32 tensors for stubs of Triton that were built for NumPy 1 and run under NumPy 2.

Such a stub misreads NumPy's arrays, silently. DLPack passes them by their layout, but has neither
strings nor empty arrays.
"""

import ctypes
from functools import lru_cache

import numpy as np
import triton_python_backend_utils as pb_utils

_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
_USED = b"used_dltensor"  # of the DLPack protocol; must live as long as any capsule


def to_numpy(tensor):
    try:
        return np.from_dlpack(tensor)
    except pb_utils.TritonModelException:
        return tensor.as_numpy()


@lru_cache(maxsize=4096)
def from_ids(name, shape, ids):
    array = np.array(ids, dtype=np.int32).reshape(shape)
    if not array.size:
        return pb_utils.Tensor(name, array)
    export = _Export(array)
    tensor = pb_utils.Tensor.from_dlpack(name, export)
    _rename(export.capsule, _USED)  # the stub's own name for it makes NumPy complain
    return tensor


class _Export:
    def __init__(self, array):
        self._array = array
        self.capsule = None

    def __dlpack__(self, **options):
        self.capsule = self._array.__dlpack__(**options)
        return self.capsule

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()
