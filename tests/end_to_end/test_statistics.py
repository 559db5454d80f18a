"""Statistics of a checkpoint's engine on the server's page of metrics."""

from __future__ import annotations

from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes.tensorrt_llm import COUNTING, serve_checkpoint, write_checkpoint
from tests.support.smollm2 import smollm2_file
from tests.support.waiting import PATIENCE_S, settles


def test_the_page_has_the_blocks_of_the_cache(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", smollm2_file())
    llm_args = {
        "enable_iter_perf_stats": True,
        "kv_cache_config": {"event_buffer_max_size": 64},
    }
    served = serve_checkpoint(folder, "1.2.1", COUNTING, runtime={"llm_args": llm_args})

    def blocks() -> dict[str, float]:
        page = httpx.get(f"http://127.0.0.1:{served.port}/metrics", timeout=PATIENCE_S).text
        return {
            sample.labels["kv_cache_block_type"]: sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "trtllm_truss_kv_cache_blocks"
        }

    try:
        served.wait_until_ready()
        assert "event_buffer_max_size is used by trtllm-truss dynamo --kv-events" in served.log
        url = f"http://127.0.0.1:{served.port}/v1/completions"
        body = {"model": "m", "prompt": "Hello", "max_tokens": 3}
        assert httpx.post(url, json=body, timeout=PATIENCE_S).status_code == 200
        expected = {"max": 64, "used": 0, "free": 64, "reused": 0, "tokens_per": 32}
        assert settles(lambda: blocks() == expected), blocks()
    finally:
        assert served.end() == 0
