"""Responses of `tensorrt_llm_bls`: one, or one for each part of the text."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import triton_python_backend_utils as pb_utils

from trtllm_truss.backends.triton_native.tensors import from_numpy, from_texts
from trtllm_truss.backends.triton_native.values import Value, to_array
from trtllm_truss.errors import TrussError

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_CANCELLATION_CHECK_S = 0.1  # the interval of the engine's own check


class Reply:
    """The responses to one request.

    Args:
        sender: Triton's response sender.
        stub: lock held during calls of Triton; its stub can crash when two threads make them.
    """

    def __init__(self, sender: Any, stub: threading.Lock) -> None:
        self._sender = sender
        self._stub = stub
        self._texts: list[str] = []
        self._extras: dict[str, Value] = {}
        self._checked_s = 0.0

    def add(self, texts: Sequence[str], extras: Mapping[str, Value]) -> None:
        """Add values from the engine.

        Args:
            texts: the next text of each beam.
            extras: further output tensors; later ones replace earlier ones of their name.
        """
        self._texts = [old + new for old, new in zip_longest(self._texts, texts, fillvalue="")]
        self._extras.update(extras)

    def flush(self) -> None:
        """Send the collected values, if there is text."""
        if any(self._texts):
            self._send(0)

    def end(self) -> None:
        """Send the rest as the last response, even without text.

        Triton shows a flag without a response only to clients that ask for it.
        """
        self._send(_FINAL)

    def fail(self, error: TrussError) -> None:
        kinds = {400: pb_utils.TritonError.INVALID_ARG, 503: pb_utils.TritonError.UNAVAILABLE}
        kind = kinds.get(error.status, pb_utils.TritonError.INTERNAL)
        with self._stub:
            failure = pb_utils.TritonError(error.message, kind)
            self._sender.send(pb_utils.InferenceResponse(error=failure), _FINAL)

    def is_cancelled(self) -> bool:
        """Return True if the client has left; asks Triton ten times a second at most."""
        now_s = time.monotonic()
        if now_s - self._checked_s < _CANCELLATION_CHECK_S:
            return False
        self._checked_s = now_s
        with self._stub:
            return bool(self._sender.is_cancelled())

    def _send(self, flags: int) -> None:
        with self._stub:
            tensors = [from_texts("text_output", [self._texts or [""]])]
            tensors += [from_numpy(name, to_array(value)) for name, value in self._extras.items()]
            self._sender.send(pb_utils.InferenceResponse(tensors), flags)
        self._texts, self._extras = [], {}
