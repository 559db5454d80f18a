"""Read the key/value header of a GGUF file, which contains the model's metadata.

The format is ggml's, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md: the magic, a
version, the number of tensors and of keys, then the keys, each a length-prefixed name, a type and a
value. Versions 2 and 3 in little-endian order are supported; every current tool writes them.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from trtllm_truss.errors import ArtifactError

MetadataValue = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]

GGUF_SUFFIX = ".gguf"

_HEADER = struct.Struct("<4sIQQ")
_VERSIONS = (2, 3)
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING = 8
_ARRAY = 9
_LENGTH_BYTES = 8
_CUT = "it ends inside its header"
_MAX_HEADER_BYTES = 1 << 26  # ten times that of a vocabulary of 256,000 tokens


def read_metadata(path: Path) -> dict[str, MetadataValue]:
    """Read all keys in a GGUF file's header, but not its tensors.

    Raises:
        ArtifactError: the file cannot be read, is not GGUF, has an unsupported version, or is
            truncated.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(data).read()
    except (OSError, ValueError, struct.error) as error:
        raise ArtifactError(
            f"{path} cannot be read as a GGUF file ({error}); download or convert it again."
        ) from error


class _Header:
    """A cursor over the mapped file; raises `ValueError` or `struct.error` for corrupt data."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def read(self) -> dict[str, MetadataValue]:
        magic, version, _tensors, keys = _HEADER.unpack(self._take(_HEADER.size))
        if magic != b"GGUF":
            raise ValueError("it does not start with 'GGUF'")
        if version not in _VERSIONS:
            raise ValueError(f"version {version} or byte order is not supported")
        metadata: dict[str, MetadataValue] = {}
        for _ in range(keys):
            name = self._string()
            metadata[name] = self._value(self._scalar("I"))
        return metadata

    def _check_end(self, end: int) -> None:
        if end > len(self._data):
            raise ValueError(_CUT)
        if end > _MAX_HEADER_BYTES:
            raise ValueError(f"its header has more than {_MAX_HEADER_BYTES:,} bytes")

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        self._check_end(self._at)
        return self._data[start : self._at]

    def _scalar(self, code: str) -> int:
        value: int = self._scalars(code, 1)[0]
        return value

    def _scalars(self, code: str, count: int) -> tuple[int, ...]:
        # Check the size before `unpack` builds its tuple: a corrupt count may be astronomic.
        size = struct.calcsize(f"<{code}") * count
        return struct.unpack(f"<{count}{code}", self._take(size))

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        """Read strings in one loop: a vocabulary has a hundred thousand of them."""
        data, at, strings = self._data, self._at, []
        end = min(len(data), _MAX_HEADER_BYTES)
        for _ in range(count):
            start = at + _LENGTH_BYTES
            at = start + int.from_bytes(data[at:start], "little")
            if at > end:
                self._check_end(at)
            strings.append(data[start:at].decode())
        self._at = at
        return strings

    def _value(self, kind: int) -> MetadataValue:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(kind=self._scalar("I"), count=self._scalar("Q"))
        return self._scalar(self._code(kind))

    def _array(self, kind: int, count: int) -> MetadataValue:
        if kind == _STRING:
            return self._strings(count)
        return list(self._scalars(self._code(kind), count))

    @staticmethod
    def _code(kind: int) -> str:
        if kind not in _SCALARS:
            raise ValueError(f"it has a value of the unsupported type {kind}")
        return _SCALARS[kind]
