"""A checkpoint with speculative decoding, whose sampler knows less than the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fakes.tensorrt_llm import COUNTING, serve_checkpoint, write_checkpoint
from tests.support.smollm2 import smollm2_file

pytestmark = pytest.mark.server

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


@pytest.mark.thorough
def test_requests_that_ask_for_nothing_of_it_are_answered(tmp_path: Path) -> None:
    """Qwen2.5, for example, recommends a penalty, which drafts within the model would drop."""
    folder = write_checkpoint(tmp_path / "model", smollm2_file())
    (folder / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1.1}))
    drafts = {"decoding_type": "MTP", "max_draft_len": 2}
    runtime = {"llm_args": {"speculative_config": drafts}}
    served = serve_checkpoint(folder, "1.2.1", COUNTING, runtime=runtime)

    def ask(**fields: Any) -> httpx.Response:
        url = f"http://127.0.0.1:{served.port}/v1/chat/completions"
        return httpx.post(url, json={**BODY, **fields}, timeout=60)

    try:
        served.wait_until_ready()
        assert ask().status_code == 200
        assert "repetition_penalty is not used" in served.log
        for words, fields in (
            ("remove speculative_config", {"frequency_penalty": 1}),
            ("not supported with speculative_config", {"logprobs": True}),
            ("logit_bias is not supported", {"logit_bias": {"5": 1}}),
        ):
            refused = ask(**fields)
            assert refused.status_code == 400
            assert words in refused.json()["error"]["message"]
        assert ask().status_code == 200
    finally:
        assert served.end() == 0
