"""Watch the files of LoRA adapters, so that TensorRT-LLM never reads a damaged one.

Up to 1.2, an adapter that it cannot read kills the worker, and with it every stream. It reads an
adapter at the first request, and again after its cache of `max_cpu_loras` has dropped it. Sources
in NVIDIA/TensorRT-LLM: ``_enqueue_request`` of ``tensorrt_llm/executor/base_worker.py``, near 1.2,
whose ``try`` begins later (pull request 13517, May 2026, makes it an error of the request), and
``add_request_peft`` of ``_torch/pyexecutor/resource_manager.py``, near 1.1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtllm_truss.engines.adapters import ADAPTER_CONFIG
from trtllm_truss.engines.adapters import Adapter as Contents
from trtllm_truss.engines.checkpoint.adapter_files import FILES, read_adapter_folder
from trtllm_truss.errors import ArtifactError


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: its `lora_task_id`, its name for the LLM API, and its folder."""

    number: int
    name: str
    path: str

    @property
    def quoted(self) -> str:
        return json.dumps(self.name, ensure_ascii=False)


class AdapterFiles:
    """The files of one adapter, as they were at the start.

    Raises:
        ArtifactError: they cannot be applied.
    """

    def __init__(self, adapter: Adapter) -> None:
        self._name = adapter.name
        self._folder = Path(adapter.path)
        self._stamps = self._look()
        self._contents = self._read()

    def check(self) -> None:
        """Check the files again; reread them if any was modified since.

        Raises:
            ArtifactError: they are missing, damaged, or belong to another adapter.
        """
        stamps = self._look()
        if stamps == self._stamps:
            return
        if self._read() != self._contents:
            raise ArtifactError(
                "its files have changed since the server started; restart it to load them."
            )
        self._stamps = stamps

    def _look(self) -> list[tuple[int, ...]]:
        with _present():
            states = [(self._folder / name).stat() for name in FILES]
        return [(each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in states]

    def _read(self) -> tuple[bytes, Contents]:
        contents = read_adapter_folder(self._name, self._folder)
        with _present():  # it may have been removed since
            return (self._folder / ADAPTER_CONFIG).read_bytes(), contents


@contextmanager
def _present() -> Iterator[None]:
    """Raise ArtifactError with the file's name for an OSError."""
    try:
        yield
    except OSError as error:
        name = Path(str(error.filename)).name
        raise ArtifactError(
            f"{name} cannot be read ({error.strerror}); restore it, or restart the server."
        ) from None
