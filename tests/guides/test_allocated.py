"""The memory of compiled guides counts allocations in new and in freed pages."""

from __future__ import annotations

from trtllm_truss.guides.compiler_worker import allocated_bytes


def test_allocated_and_freed_memory_counts() -> None:
    before = allocated_bytes()
    blocks = [bytes(1000) for _ in range(8000)]
    large = bytearray(16 << 20)
    both = allocated_bytes()
    assert 23 << 20 <= both - before < 26 << 20
    del large
    assert 15 << 20 <= both - allocated_bytes() < 18 << 20
    del blocks
    assert allocated_bytes() - before < 2 << 20
