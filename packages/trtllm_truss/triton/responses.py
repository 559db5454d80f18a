"""The responses of one call, read by a task of their own.

A task that is cancelled while it waits for a gRPC message takes the whole call with it. Here only
the waiting ends, and whoever let go of the answer can still end the call as it should be ended.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc


class Responses:
    """What a ``ModelStreamInfer`` call gives back; belongs to the running event loop."""

    def __init__(self, call: Any) -> None:
        """Starts to read; ``call`` has been made and may still be written to."""
        self._call = call
        self._received: asyncio.Queue[Any] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    async def next(self) -> Any:
        """Waits for the next ``ModelStreamInferResponse``; None is the end. May be cancelled.

        Raises:
            grpc.aio.AioRpcError: the call failed.
            ConnectionAbortedError: the call was cancelled on this side.
        """
        received = await self._received.get()
        if isinstance(received, Exception):
            raise received
        return received

    @property
    def has_ended(self) -> bool:
        """Whether nothing more can come."""
        return self._reader.done()

    async def ended(self, within_s: float) -> bool:
        """Waits until the server has ended the call, and tells whether it did so in time."""
        done, _ = await asyncio.wait([self._reader], timeout=within_s)
        return bool(done)

    async def _read(self) -> None:
        put = self._received.put_nowait
        try:
            async for response in self._call:
                put(response)
        except grpc.aio.AioRpcError as failure:
            put(failure)
        except asyncio.CancelledError:  # of the call, for nobody cancels this task
            put(ConnectionAbortedError())
        else:
            put(None)
