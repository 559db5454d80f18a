"""How an engine tells which part of a prompt it found in its KV cache."""

from __future__ import annotations

from trtllm_truss.engines.engine import Engine
from trtllm_truss.releases.contract import CACHED_TOKENS, REUSED_BLOCKS, CacheReport
from trtllm_truss.releases.tables import rows_for
from trtllm_truss.settings.runtime import RuntimeOptions

_TOKENS = CacheReport(CACHED_TOKENS.name, 1)


def cache_report_of(
    engine: Engine, runtime: RuntimeOptions, tensorrt_llm_version: str | None
) -> CacheReport | None:
    """Return the report of an engine; None if it has none.

    TensorRT-LLM counts blocks, those of every window of attention together: with several windows
    they are no measure of the prompt. Source: ``KVCacheManager::addSequence`` of
    cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp in NVIDIA/TensorRT-LLM, near 0.19 and 1.1.
    """
    if engine.reused_block_tokens is None:
        return _TOKENS
    has_windows = len(set(runtime.max_attention_window_size)) > 1
    if has_windows or not rows_for((REUSED_BLOCKS,), tensorrt_llm_version):
        return None
    return CacheReport(REUSED_BLOCKS.name, engine.reused_block_tokens)
