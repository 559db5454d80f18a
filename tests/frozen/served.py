"""Lines of the start, metrics, spans and Triton's own API of one served engine."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.triton import FAKE_ENGINE, config_for, write_engine
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.smollm2 import smollm2_tokenizer
from tests.support.truss_process import Served, free_port

TIMEOUT_S = 60
EOS = 2
_NORMALIZED = [
    (re.compile(pattern, re.MULTILINE), replacement)
    for pattern, replacement in (
        (r"^\d\d:\d\d:\d\d ", ""),
        (r"^(Python|NVIDIA driver|CUDA compatibility|CUDA|GPUs?)\b.*", r"\1: …"),
        (r"\(\d+\.\d s\)", "(TIME)"),
        (r"after \d+\.\d s", "after TIME"),
        (r"\b[0-9a-f]{32}\b", "ID"),
        (r"\b(\w+_ms|tokens_per_s)=[\d.]+", r"\1=NUMBER"),
        # Of two answers, the second finds the prompt in the cache if the first has been read.
        (r"\bcached_tokens=\d+", "cached_tokens=NUMBER"),
        (r"^triton: [WIE]\d{4} .*\n", ""),
    )
]
_MACHINE = ("nv_gpu_", "nv_energy_", "python_")
"""Prefixes of metrics that depend on the machine or on Python."""

_VERSION = re.compile(r'version="[\d.]+"')
_BOUND = re.compile(r'\ble="([^"]+)"')
NATIVE = {"text_input": "Hi", "max_tokens": 4, "bad_words": "", "stop_words": ""}


def record() -> Mapping[str, str]:
    """Serve the fake engine with Triton's native models, and return what it shows."""
    with tempfile.TemporaryDirectory() as place, OtlpReceiver() as receiver:
        folder = Path(place).resolve()
        ids = smollm2_tokenizer().encode("Hello there!")
        native_port = free_port()
        write_engine(folder / "engine", tokens=[*ids, EOS])
        config = config_for(
            folder / "engine",
            sections={"runtime": {"enable_tracing_data": True}},
            serving={"triton_native": True, "triton_http_port": native_port},
        )
        variables = {**FAKE_ENGINE, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
        served = Served(config, variables)
        try:
            served.wait_until_ready()
            base = f"http://127.0.0.1:{served.port}"
            _call(base, "/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}], n=2)
            _call(base, "/v1/completions", prompt="Hi", max_tokens=0)
            native = "\n\n".join(_native(f"http://127.0.0.1:{native_port}/v2"))
            page = httpx.get(f"{base}/metrics", follow_redirects=True, timeout=TIMEOUT_S).text
            assert served.end() == 0, served.log
        finally:
            if served.process.poll() is None:
                served.process.kill()
                served.process.wait()
        hidden = {str(served.port): "PORT", str(native_port): "NATIVE", str(folder): "FOLDER"}
        log = _hide(served.log, hidden)
        return {
            "start.txt": "\n".join(sorted(log.splitlines())) + "\n",
            "metrics.txt": "\n".join(_families(page)) + "\n",
            "spans.txt": "\n".join(sorted(set(_spans(receiver)))) + "\n",
            "exchanges/triton-native.txt": _hide(native, hidden) + "\n",
        }


def _call(base: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(base + path, json=body, timeout=TIMEOUT_S)


def _native(url: str) -> Iterator[str]:
    """Yield the exchanges of Triton's API."""
    with httpx.Client(timeout=TIMEOUT_S) as client:
        for path in ("models/ensemble", "models/tensorrt_llm_bls", "models/tensorrt_llm"):
            answer = client.get(f"{url}/{path}").json()
            tensors = {
                side: [_tensor(each) for each in answer[side]] for side in ("inputs", "outputs")
            }
            yield f"=== GET {path}\n{json.dumps(tensors, indent=1)}"
        for path, fields in (
            ("models/ensemble/generate", {}),
            ("models/tensorrt_llm_bls/generate", {}),
            ("models/ensemble/generate", {"end_id": EOS, "pad_id": EOS, "stop_words": [" there"]}),
            ("models/ensemble/generate_stream", {"stream": True}),
            ("models/tensorrt_llm_bls/generate", {"min_p": 0.5}),
            ("models/ensemble/generate", {"max_tokens": -1}),
        ):
            body = {**NATIVE, **fields}
            answer = client.post(f"{url}/{path}", json=body)
            text = _joined(answer.text) if "stream" in fields else answer.text
            yield f"=== POST {path}\n{json.dumps(body)}\n--- {answer.status_code}\n{text}"


def _joined(events: str) -> str:
    """Return one event with the text of all: the pieces depend on time."""
    found = [json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line]
    return json.dumps({**found[0], "text_output": "".join(each["text_output"] for each in found)})


def _tensor(tensor: Mapping[str, Any]) -> str:
    return f"{tensor['name']} {tensor['datatype']} {tensor['shape']}"


def _families(page: str) -> Iterator[str]:
    """Yield name, type, help and series of each metric, without values."""
    families: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    name = ""
    for line in page.splitlines():
        if line.startswith("# HELP "):
            name, _, text = line.removeprefix("# HELP ").partition(" ")
            texts[name] = text
        elif line.startswith("# TYPE "):
            name, _, kind = line.removeprefix("# TYPE ").partition(" ")
            families[name] = [f"{name} {kind}: {texts[name]}"]
        else:
            series = _VERSION.sub("version", line.rpartition(" ")[0])
            bound = _BOUND.search(series)
            if bound is None:
                families[name].append(f"  {series}")
            elif families[name][-1].startswith("  le "):
                families[name][-1] += f" {bound[1]}"
            else:
                families[name].append(f"  le {bound[1]}")
    for name, lines in sorted(families.items()):
        if not name.startswith(_MACHINE):
            yield "\n".join([lines[0], *sorted(lines[1:])])


def _spans(receiver: OtlpReceiver) -> Iterator[str]:
    """Yield the name and the attributes of spans, with the types of their values."""
    for span in receiver.spans("trtllm-truss"):
        kinds = (f"{each.key}={each.value.WhichOneof('value')}" for each in span.attributes)
        yield f"{span.name} kind={span.kind} status={span.status.message} {' '.join(sorted(kinds))}"


def _hide(text: str, hidden: Mapping[str, str]) -> str:
    for value, name in hidden.items():
        text = text.replace(value, name)
    for pattern, replacement in _NORMALIZED:
        text = pattern.sub(replacement, text)
    return text
