"""NumPy 2 under a stub of Triton's Python backend that was built for NumPy 1.

The `nvidia-pytriton` wheel has such a stub (Triton 24.10, pybind11 before 2.12). It looks for an
array's item size at NumPy 1's offset, where NumPy 2 keeps flags, mostly zero. It then reads one
byte over and over, which ends the process at the length of a string, and it sends no bytes.

Both directions are repaired here. Where stub and NumPy match, as in NVIDIA's images, the repair
changes nothing.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ITEM_SIZE_OFFSET = 32  # of `elsize` in NumPy 1's PyArray_Descr, on every 64-bit platform
_NEW_FROM_DESCR = 94  # PyArray_NewFromDescr in the table of NumPy's C functions
_TABLE_LENGTH = 283  # up to PyArray_SetBaseObject, the last one that pybind11 takes

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_pointer, _integer = ctypes.c_void_p, ctypes.c_int
_NewFromDescr = ctypes.PYFUNCTYPE(
    *(_pointer, _pointer, _pointer, _integer, _pointer, _pointer, _pointer, _integer, _pointer)
)
_kept: list[Any] = []  # C code points to these


def repair_reading() -> None:
    """Let NumPy lay out the arrays that an old stub makes, instead of the stub's wrong item size.

    Call it before the stub makes its first array. pybind11 2.12 and later take NumPy 2's functions
    from another table, which is left unchanged.
    """
    if int(np.__version__.split(".")[0]) < 2 or _kept:
        return
    numpy_2 = importlib.import_module("numpy._core.multiarray")
    numpy_1 = importlib.import_module("numpy.core.multiarray")
    source = _get_pointer(numpy_2._ARRAY_API, None)
    table = (ctypes.c_size_t * _TABLE_LENGTH).from_buffer_copy(
        ctypes.string_at(source, _TABLE_LENGTH * ctypes.sizeof(ctypes.c_size_t))
    )
    original = _NewFromDescr(table[_NEW_FROM_DESCR])

    def without_strides(
        kind: int, dtype: int, ndim: int, shape: int, _: int, data: int, flags: int, base: int
    ) -> Any:
        return original(kind, dtype, ndim, shape, None, data, flags, base)

    replacement = _NewFromDescr(without_strides)
    table[_NEW_FROM_DESCR] = ctypes.cast(replacement, _pointer).value or 0
    _kept.extend((table, original, replacement))
    vars(numpy_1)["_ARRAY_API"] = _new_capsule(ctypes.addressof(table), None, None)


def readable_copy(array: NDArray[Any]) -> NDArray[Any]:
    """Copy an array so that an old stub sees its size.

    Pass it to the stub and to nothing else: its dtype, which no other array shares, has lost its
    flags. An empty array, or one of objects, is returned unchanged.
    """
    if not array.size or array.dtype.hasobject:
        return array
    dtype: np.dtype[Any] = np.dtype(array.dtype, copy=True)
    copy = np.frombuffer(array.tobytes(), dtype).reshape(array.shape)
    place = id(copy.dtype) + _ITEM_SIZE_OFFSET
    ctypes.c_int32.from_address(place).value = copy.dtype.itemsize
    return copy
