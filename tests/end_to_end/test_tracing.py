"""Spans of the real server at a real receiver, the last ones too."""

from __future__ import annotations

from pathlib import Path

import httpx
import yaml
from tests.fakes.triton import FAKE_ENGINE, config_for, write_engine
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.truss_process import Served

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "model": "m"}


def test_spans_of_whole_streamed_and_refused_calls_are_exported(tmp_path: Path) -> None:
    config = config_for(write_engine(tmp_path / "engine"))
    content = yaml.safe_load(config.read_text())
    content["runtime"] = {"predict_concurrency": 8, "enable_tracing_data": True}
    config.write_text(yaml.safe_dump(content))
    headers = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
    with OtlpReceiver() as receiver:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"{receiver.url}/v1/traces"}
        served = Served(config, {**FAKE_ENGINE, **variables})
        try:
            served.wait_until_ready()
            url = f"http://127.0.0.1:{served.port}/v1/chat/completions"
            statuses = [
                httpx.post(url, json={**BODY, **more}, headers=headers, timeout=60).status_code
                for more in ({}, {"stream": True}, {"max_tokens": 0})
            ]
        finally:
            assert served.end() == 0
        assert statuses == [200, 200, 400]
    ours = receiver.spans("trtllm-truss")
    assert {span.trace_id.hex() for span in ours} == {TRACE_ID}
    tops = [span for span in ours if span.parent_span_id.hex() == SPAN_ID]
    assert [span.name for span in tops] == ["chat m", "chat m", "POST /v1/chat/completions"]
    assert [span.status.message for span in tops] == ["", "", "invalid_request"]
    phases = ["queue", "first_token", "stream"]
    assert [[span.name for span in ours if span.parent_span_id == top.span_id] for top in tops] == [
        phases,
        phases,
        [],
    ]
