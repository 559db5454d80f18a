"""Streams longer than one step of the engine, with each scheduling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fakes.triton import serve_engine, write_engine

SHORT_STEPS = {"max_num_tokens": 64, "max_input_len": 64}
PROMPT = [9, 8, 7, 6, 5]
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize(
    ("paged", "runtime", "longest"),
    [
        (True, {}, 2048),
        pytest.param(False, {}, 2048, marks=pytest.mark.thorough),
        (False, {"batch_scheduler_policy": "max_utilization"}, 65),
    ],
)
def test_the_executor_refuses_no_stream(
    tmp_path: Path, paged: bool, runtime: dict[str, Any], longest: int
) -> None:
    plugins = {"use_paged_context_fmha": paged}
    folder = write_engine(tmp_path / "engine", limits=SHORT_STEPS, plugins=plugins)
    served = serve_engine(folder, runtime=runtime).wait_until_ready()

    def post(path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(f"http://127.0.0.1:{served.port}/v1/{path}", json=body, timeout=60)

    try:
        assert post("chat/completions", CHAT).status_code == 200  # without max_tokens
        room = longest - len(PROMPT)
        answer = post("completions", {"prompt": PROMPT, "max_tokens": room})
        assert answer.json()["usage"]["total_tokens"] == longest
        cut = post("completions", {"prompt": PROMPT, "max_tokens": longest})
        assert cut.json()["usage"]["total_tokens"] == longest
        assert cut.json()["choices"][0]["finish_reason"] == "length"
        refused = post("completions", {"prompt": PROMPT, "max_tokens": longest + 1})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert ("limited to 65 tokens together" in served.log) is (longest == 65)
    finally:
        assert served.end() == 0
