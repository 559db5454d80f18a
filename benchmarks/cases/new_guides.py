"""Measure the time that a new JSON schema adds before the first token."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import httpx

from benchmarks.cases.setup import PROMPT, set_up
from benchmarks.options import Options
from benchmarks.paths import ROOT
from benchmarks.result import CaseResult, Column
from benchmarks.sample import Sample, spreads
from benchmarks.servers.configuration import changed, write_config
from benchmarks.servers.target import Target
from benchmarks.servers.truss import serve

_EXAMPLE = ROOT / "examples/smollm2-135m-cpu/config.yaml"
_TORCH_STUB = ROOT / "tests/fakes/torch"
"""XGrammar's Python package imports torch; nothing of it is used here."""
_FURTHER = 8
_TOKENS = 4
_FIRST, _NEXT, _AGAIN = "first after a start", "each further new one", "sent before"
_COLUMNS = [
    Column("engine", "engine"),
    Column("schema", "schema"),
    Column("with_ms", "TTFT with it, ms", 1),
    Column("without_ms", "without, ms", 1),
    Column("extra_ms", "extra, ms", 1),
]
_TEXT = f"""\
One client; each request is sent twice, with and without `response_format`, in turns: first with,
then without, and the other way round. The prompt is the same and was sent before, so that both find
it in the KV cache; every schema differs in a name. {_FURTHER + 1} schemas for each start, as many
starts as rounds. “Extra” is the difference within a pair."""


def run(options: Options) -> CaseResult:
    """Measure the CPU example, and the compiled engine's stand-in with XGrammar's check."""
    result = CaseResult("new-guides", "New JSON schemas", _TEXT, _COLUMNS).begin()
    options.work.mkdir(parents=True, exist_ok=True)
    bench = set_up(options, "new-guides")
    smollm2 = import_module("tests.support.smollm2")
    guides = {
        "tokenizer_repository": str(smollm2.write_smollm2_tokenizer(options.work / "tokenizer")),
        "runtime": {"guided_decoding_backend": "xgrammar"},
    }
    has_torch = importlib.util.find_spec("torch") is not None
    stubs = [] if has_torch else [str(_TORCH_STUB)]
    guided = changed(bench.config, "guided", model_metadata=guides, external_package_dirs=stubs)
    cpu = write_config(options.work / "new-guides-cpu.yaml", _EXAMPLE)
    for name, config, backends in (
        ("CPU example", cpu, None),
        (f"stand-in of the compiled engine ({bench.backend.kind})", guided, bench.backend.folder),
    ):
        _measure(result, options, name, config, backends)
    return result


def _measure(
    result: CaseResult, options: Options, name: str, config: Path, backends: Path | None
) -> None:
    found: dict[str, list[Sample]] = {_FIRST: [], _NEXT: [], _AGAIN: []}
    for start in range(options.rounds):
        with serve(config, backends) as target, _client(target) as client:
            for _ in range(3):
                _ttft_ms(client, None)
            for number in range(1 if options.quick else _FURTHER + 1):
                schema = _schema(f"city_{start}_{number}")
                kind = _NEXT if number else _FIRST
                found[kind].append(_pair(client, schema, guide_first=number % 2 == start % 2))
                found[_AGAIN].append(_pair(client, schema, guide_first=number % 2 == 0))
    for kind, samples in found.items():
        if samples:
            spread = spreads(samples)
            result.add(engine=name, schema=kind, **spread)
            result.find(f"{name}, {kind}: {spread['extra_ms'].shown('.0f', ' ms')} extra.")


@contextmanager
def _client(target: Target) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{target.port}", timeout=120) as client:
        yield client


def _pair(client: httpx.Client, schema: object, *, guide_first: bool) -> Sample:
    if guide_first:
        with_ms, without_ms = _ttft_ms(client, schema), _ttft_ms(client, None)
    else:
        without_ms, with_ms = _ttft_ms(client, None), _ttft_ms(client, schema)
    return {"with_ms": with_ms, "without_ms": without_ms, "extra_ms": with_ms - without_ms}


def _ttft_ms(client: httpx.Client, schema: object) -> float:
    """Return the time to the first token of a streamed completion."""
    body: dict[str, object] = {"prompt": PROMPT, "max_tokens": _TOKENS, "stream": True}
    if schema is not None:
        form = {"name": "weather", "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    begun_s = time.perf_counter()
    with client.stream("POST", "/v1/completions", content=json.dumps(body)) as answer:
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"{answer.status_code}: {answer.read().decode()}")
        first_s = 0.0
        for line in answer.iter_lines():
            if line.startswith("data: ") and not first_s:
                first_s = time.perf_counter()
    return 1000 * (first_s - begun_s)


def _schema(name: str) -> dict[str, object]:
    """Return a tool's parameters: enumerations, a range, a free text, a list."""
    return {
        "type": "object",
        "properties": {
            name: {"enum": ["Oslo", "Paris", "Rome"]},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "note": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": [name, "unit", "days"],
        "additionalProperties": False,
    }
