"""The router's knowledge of an engine's KV cache after events, and after lost ones."""

from __future__ import annotations

from typing import Any

import pytest

from trtllm_dynamo.cached_blocks import CachedBlocks


class Router:
    """The blocks of one worker, with the rules of Dynamo's index: a parent must be known."""

    def __init__(self) -> None:
        self.parents: dict[int, int | None] = {}
        self.tokens: dict[int, tuple[int, ...]] = {}

    def publish_stored(
        self,
        token_ids: list[int],
        num_block_tokens: list[int],
        block_hashes: list[int],
        parent_hash: int | None = None,
    ) -> None:
        assert num_block_tokens == [2] * len(block_hashes)
        assert len(token_ids) == 2 * len(block_hashes)
        for position, block_hash in enumerate(block_hashes):
            assert -(2**63) <= block_hash < 2**63
            assert parent_hash is None or parent_hash in self.parents
            self.parents[block_hash] = parent_hash
            self.tokens[block_hash] = tuple(token_ids[2 * position :][:2])
            parent_hash = block_hash

    def publish_removed(self, block_hashes: list[int]) -> None:
        for block_hash in block_hashes:
            del self.parents[block_hash]


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.fixture
def blocks(router: Router) -> CachedBlocks:
    return CachedBlocks(router, block_tokens=2)


def stored(number: int, parent: int | None, *hashes: int, window: int = 8) -> dict[str, Any]:
    added = [[each, [each % 1000, each % 1000 + 1]] for each in hashes]
    return {"id": number, "window": window, "stored": [parent, added]}


def removed(number: int, *hashes: int, window: int = 8) -> dict[str, Any]:
    return {"id": number, "window": window, "removed": [*hashes]}


def test_a_block_is_there_until_it_is_removed(blocks: CachedBlocks, router: Router) -> None:
    blocks.take({"id": 0, "window": 8})
    blocks.take(stored(1, None, 10, 20))
    blocks.take(stored(2, 10, 30))
    assert router.parents == {10: None, 20: 10, 30: 10}
    assert router.tokens[30] == (30, 31)
    blocks.take(removed(3, 20, 99))
    assert router.parents == {10: None, 30: 10}


def test_hashes_become_signed(blocks: CachedBlocks, router: Router) -> None:
    blocks.take(stored(0, None, 2**64 - 1, 2**63))
    assert router.parents == {-1: None, -(2**63): -1}
    blocks.take(stored(1, 2**63, 5))
    assert router.parents[5] == -(2**63)
    blocks.take(removed(2, 2**64 - 1, 2**63, 5))
    assert router.parents == {}


def test_a_part_of_a_block_is_unknown(blocks: CachedBlocks, router: Router) -> None:
    event = stored(0, None, 10, 20)
    event["stored"][1][1][1].pop()
    blocks.take(event)
    assert router.parents == {10: None}
    blocks.take(removed(1, 20))
    assert router.parents == {10: None}


def test_the_longest_window_counts(blocks: CachedBlocks, router: Router) -> None:
    for number, window in enumerate((4, 8)):
        blocks.take({"id": number, "window": window})
    blocks.take(stored(2, None, 10, window=4))
    blocks.take(stored(3, None, 20))
    blocks.take(removed(4, 20, window=4))
    assert router.parents == {20: None}


def test_a_release_without_windows(blocks: CachedBlocks, router: Router) -> None:
    blocks.take({**stored(0, None, 10), "window": None})
    assert router.parents == {10: None}


def test_a_gap_makes_the_router_forget(blocks: CachedBlocks, router: Router) -> None:
    blocks.take(stored(0, None, 10, 20))
    blocks.take(stored(2, None, 50))
    assert router.parents == {50: None}


def test_blocks_before_a_gap_come_back_with_one_that_follows(
    blocks: CachedBlocks, router: Router
) -> None:
    blocks.take(stored(0, None, 10, 20, 30))
    blocks.take(stored(1, 10, 40))
    blocks.take(stored(7, 20, 60))
    assert router.parents == {10: None, 20: 10, 60: 20}
    assert router.tokens[20] == (20, 21)
    blocks.take(stored(8, 40, 70))
    assert router.parents == {10: None, 20: 10, 60: 20, 40: 10, 70: 40}


def test_a_block_removed_after_a_gap_does_not_come_back(
    blocks: CachedBlocks, router: Router
) -> None:
    blocks.take(stored(0, None, 10, 20))
    blocks.take(removed(5, 20))
    blocks.take(stored(6, 20, 30))
    assert router.parents == {}


def test_a_block_after_one_that_was_never_told(blocks: CachedBlocks, router: Router) -> None:
    blocks.take(stored(3, 10, 20))
    assert router.parents == {}


def test_another_cache_begins_anew(blocks: CachedBlocks, router: Router) -> None:
    blocks.take(stored(5, None, 10, 20))
    blocks.clear()
    assert router.parents == {}
    blocks.take(stored(0, 10, 30, window=4))
    blocks.take(stored(1, None, 40, window=4))
    assert router.parents == {40: None}
