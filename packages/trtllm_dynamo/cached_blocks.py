"""The KV cache blocks of one worker that Dynamo's router knows."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Publisher(Protocol):
    """The `KvEventPublisher` of Dynamo; hashes are signed."""

    def publish_stored(
        self,
        token_ids: list[int],
        num_block_tokens: list[int],
        block_hashes: list[int],
        parent_hash: int | None = None,
    ) -> None: ...

    def publish_removed(self, block_hashes: list[int]) -> None: ...


class _Block(NamedTuple):
    parent: int | None
    tokens: array[int]


class CachedBlocks:
    """The blocks of one KV cache that the router knows.

    TensorRT-LLM drops the oldest events of a full buffer, which leaves a gap in their numbers.
    Known blocks may be gone after a gap, so the router forgets them. An event for a block that
    follows one of them proves that this one and all before it still exist: they are published
    again.

    Source: `KVCacheEventManager` in cpp/tensorrt_llm/batch_manager/kvCacheEventManager.cpp of
    NVIDIA/TensorRT-LLM, near 1.2: each event has a number, and a hash also depends on all tokens
    before the block.
    """

    def __init__(self, publisher: Publisher, block_tokens: int) -> None:
        self._publisher = publisher
        self._block_tokens = block_tokens
        self._known: dict[int, _Block] = {}
        self._doubted: dict[int, _Block] = {}
        self._next_id: int | None = None
        self._window = 0

    def take(self, event: Mapping[str, Any]) -> None:
        """Publish an event of the engine, as sent by `trtllm_backends.llm_api`.

        A model with several attention windows has a cache for each; only the longest one counts.
        """
        if self._next_id not in (None, event["id"]):
            self._forget()
        self._next_id = event["id"] + 1
        window = event["window"] or 0
        if window > self._window:
            self._forget()
            self._doubted.clear()
            self._window = window
        if window < self._window:
            return
        if "stored" in event:
            parent, blocks = event["stored"]
            self._store(None if parent is None else _signed(parent), blocks)
        elif "removed" in event:
            self._remove([_signed(each) for each in event["removed"]])

    def clear(self) -> None:
        """Forget a cache that is gone; events of another one may follow."""
        self._forget()
        self._doubted.clear()
        self._next_id, self._window = None, 0

    def _store(self, parent: int | None, blocks: Sequence[tuple[int, list[int]]]) -> None:
        found = self._recalled(parent)
        if found is None:
            return  # its beginning is unknown, so no prompt can match
        for number, tokens in blocks:
            if len(tokens) != self._block_tokens:
                break  # the last one, which the router does not know
            block_hash = _signed(number)
            found.append((block_hash, _Block(parent, array("i", tokens))))
            parent = block_hash
        if not found:
            return
        self._known.update(found)
        for block_hash, _ in found:
            self._doubted.pop(block_hash, None)
        self._publisher.publish_stored(
            [token for _, block in found for token in block.tokens],
            [self._block_tokens] * len(found),
            [block_hash for block_hash, _ in found],
            found[0][1].parent,
        )

    def _recalled(self, block_hash: int | None) -> list[tuple[int, _Block]] | None:
        """Return the doubted blocks up to one, first one first; None if one is unknown."""
        found: list[tuple[int, _Block]] = []
        while block_hash is not None and block_hash not in self._known:
            block = self._doubted.get(block_hash)
            if block is None:
                return None
            found.append((block_hash, block))
            block_hash = block.parent
        return found[::-1]

    def _remove(self, hashes: Sequence[int]) -> None:
        for block_hash in hashes:
            self._doubted.pop(block_hash, None)
        if known := [each for each in hashes if self._known.pop(each, None) is not None]:
            self._publisher.publish_removed(known)

    def _forget(self) -> None:
        if self._known:
            self._publisher.publish_removed([*self._known])
        self._doubted, self._known = self._known, {}


def _signed(number: int) -> int:
    """Return the signed integer with the bits of an unsigned 64-bit one."""
    return number - 2**64 if number >= 2**63 else number
