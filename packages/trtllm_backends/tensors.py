"""Typed reading of a request's input tensors and of `parameters` in config.pbtxt.

NumPy 2 also runs under a stub of Triton's Python backend that was built for NumPy 1. The
`nvidia-pytriton` wheel has such a stub (Triton 24.10, pybind11 before 2.12). It reads an array's
item size at NumPy 1's offset, where NumPy 2 keeps flags, which are mostly zero. It then reads one
byte over and over, which kills the process at the length of a string, and it sends no bytes. This
module repairs both directions. Where stub and NumPy match, as in NVIDIA's images, the repair
changes nothing.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from trtllm_truss.errors import InvalidRequest
from trtllm_truss.literals import BOOLEANS

_ITEM_SIZE_OFFSET = 32  # of `elsize` in NumPy 1's PyArray_Descr, on every 64-bit platform
_NEW_FROM_DESCR = 94  # PyArray_NewFromDescr in the table of NumPy's C functions
_TABLE_LENGTH = 283  # up to PyArray_SetBaseObject, the last one that pybind11 uses

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
    """Let NumPy lay out the arrays that an old stub creates, instead of the stub's wrong item size.

    Call it before the stub creates its first array. pybind11 2.12 and later take NumPy 2's
    functions from another table, which is left unchanged.
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

    Pass it only to the stub: its dtype, which no other array shares, has lost its flags. An empty
    array or an array of objects is returned unchanged.
    """
    if not array.size or array.dtype.hasobject:
        return array
    dtype: np.dtype[Any] = np.dtype(array.dtype, copy=True)
    copy = np.frombuffer(array.tobytes(), dtype).reshape(array.shape)
    place = id(copy.dtype) + _ITEM_SIZE_OFFSET
    ctypes.c_int32.from_address(place).value = copy.dtype.itemsize
    return copy


D = TypeVar("D")


class Tensors:
    """Typed access to the input tensors of one request; an absent tensor reads as its default.

    Raises:
        InvalidRequest: raised by every single-value reader unless the tensor holds exactly one
            value of the requested type. The message names the tensor and never contains a prompt.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays

    @classmethod
    def of(cls, request: Any) -> Tensors:
        """Read the inputs of Triton's request; strings are bytes in an array of objects."""
        return cls({tensor.name(): np.asarray(tensor.as_numpy()) for tensor in request.inputs()})

    def __iter__(self) -> Iterator[tuple[str, NDArray[Any]]]:
        return iter(self._arrays.items())

    def array(self, name: str) -> NDArray[Any] | None:
        return self._arrays.get(name)

    def integer(self, name: str, default: D) -> int | D:
        value = self._only_value(name)
        return default if value is None else int(value)

    def number(self, name: str, default: D) -> float | D:
        """Return one finite number."""
        value = self._only_value(name)
        if value is None:
            return default
        if not math.isfinite(value):
            raise InvalidRequest(f"{name} is {value}; send a finite number.", param=name)
        # FP32 0.9 is 0.8999999761581421; FP32 carries only seven digits.
        return float(f"{float(value):.7g}")

    def flag(self, name: str, default: bool) -> bool:
        value = self._only_value(name)
        return default if value is None else bool(value)

    def text(self, name: str) -> str:
        """Return one UTF-8 string; empty if the tensor is absent."""
        value = self._only_value(name)
        return "" if value is None else _decoded(name, value)

    def texts(self, name: str) -> list[str]:
        """Return all UTF-8 strings of a tensor, in order; none if it is absent."""
        array = self._arrays.get(name)
        return [] if array is None else [_decoded(name, value) for value in array.ravel().tolist()]

    def _only_value(self, name: str) -> Any:
        array = self._arrays.get(name)
        if array is None:
            return None
        if array.size != 1:
            raise InvalidRequest(
                f"{name} has shape {list(np.shape(array))}; send exactly one value.", param=name
            )
        return array.item()


def _decoded(name: str, value: bytes) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} is not UTF-8; send text.", param=name) from error


T = TypeVar("T")

_WITHOUT_EFFECT = frozenset({"gpt_model_type", "FORCE_CPU_ONLY_INPUT_TENSORS", "triton_backend"})
"""Keys of every config.pbtxt that have no effect on Python backends."""


class ParameterError(ValueError):
    """A parameter in config.pbtxt is missing or invalid."""


class Parameters:
    """The parameters that are set; an empty value or an unfilled `${name}` counts as unset.

    Args:
        config: a model's configuration, the JSON that Triton passes to Python backends.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        given = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self._set = {k: v for k, v in given.items() if v and not v.startswith("${")}
        self._read: set[str] = set()

    def get(self, key: str, parse: Callable[[str], T], default: T) -> T:
        """Return a parsed value, or the default if the key is unset.

        Raises:
            ParameterError: the value is invalid.
        """
        self._read.add(key)
        if key not in self._set:
            return default
        try:
            return parse(self._set[key])
        except (ValueError, KeyError) as error:
            raise ParameterError(f"Parameter {key} cannot be {self._set[key]!r}.") from error

    @property
    def unread(self) -> tuple[str, ...]:
        return tuple(sorted(self._set.keys() - self._read - _WITHOUT_EFFECT))


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def boolean(text: str) -> bool:
    return BOOLEANS[text.lower()]
