"""Read the tensors of a checkpoint from safetensors files, one at a time.

Format: https://github.com/huggingface/safetensors#format. The `gguf` package reads the headers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.utility import LocalTensor, SafetensorsLocal
from numpy.typing import NDArray

from trtllm_truss.errors import ArtifactError

_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor, not read yet.

    Attributes:
        name: in the checkpoint.
        stored: its position in the file.
    """

    name: str
    stored: LocalTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions, the contiguous one last."""
        return tuple(self.stored.shape)

    def read(self) -> NDArray[np.float32]:
        """Return the values as float32, which represents float16 and bfloat16 exactly."""
        stored = self.stored.mmap_bytes().view(_DTYPES[self.stored.dtype]).reshape(self.shape)
        if self.stored.dtype == "BF16":  # the upper half of a float32
            values: NDArray[np.float32] = (stored.astype(np.uint32) << 16).view(np.float32)
            return values
        return stored.astype(np.float32)


def find_tensors(folder: Path) -> list[StoredTensor]:
    """List the tensors of all safetensors files of a folder, by file and name.

    Raises:
        ArtifactError: there are no such files, a file is damaged, or a dtype is unsupported.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ArtifactError(f"{folder} has no .safetensors files, the only supported format.")
    tensors = [
        StoredTensor(name, stored) for file in files for name, stored in _header(file).items()
    ]
    for tensor in tensors:
        if tensor.stored.dtype not in _DTYPES:
            raise ArtifactError(
                f"the checkpoint's {tensor.name} is {tensor.stored.dtype}; use a checkpoint in "
                f"{', '.join(_DTYPES)}."
            )
    return tensors


def _header(file: Path) -> dict[str, LocalTensor]:
    try:
        tensors: dict[str, LocalTensor] = SafetensorsLocal(file).tensors
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{file} is not a safetensors file ({error}); fetch it again."
        ) from None
    end = max((t.data_range.offset + t.data_range.size for t in tensors.values()), default=0)
    if end > file.stat().st_size:
        raise ArtifactError(f"{file} is truncated; fetch it again.")
    return tensors
