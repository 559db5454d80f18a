"""The metadata of a GGUF file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (little-endian, version 2 or 3).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


class GgufError(ValueError):
    """The file is not a GGUF file that this reader knows."""


def read_metadata(path: Path) -> dict[str, Any]:
    """Read all keys and values that stand before a GGUF file's tensors.

    Raises:
        GgufError: the file is of another format or version, or ends too early.
    """
    with path.open("rb") as file:
        try:
            magic, version, _tensors, pairs = _unpack(file, "<4sIQQ")
            if magic != b"GGUF" or version not in (2, 3):
                raise GgufError(f"{path} is not a GGUF file of version 2 or 3.")
            return {_string(file): _value(file, _scalar(file, "I")) for _ in range(pairs)}
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            raise GgufError(f"{path} is damaged: its metadata cannot be read.") from error


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _scalar(file, _SCALARS[kind])
    kind, length = _unpack(file, "<IQ")
    if kind in (_STRING, _ARRAY):
        return [_value(file, kind) for _ in range(length)]
    return list(_unpack(file, f"<{length}{_SCALARS[kind]}"))


def _scalar(file: BinaryIO, code: str) -> Any:
    return _unpack(file, f"<{code}")[0]


def _string(file: BinaryIO) -> str:
    (content,) = _unpack(file, f"<{_scalar(file, 'Q')}s")
    return str(content, "utf-8")


def _unpack(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))
