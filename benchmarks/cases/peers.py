"""Compare the CPU example with llama.cpp's server: the same model file, requests and cores."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.load.process import background_load, run_load
from benchmarks.load.spec import LoadSpec
from benchmarks.options import Options
from benchmarks.paths import EXAMPLE
from benchmarks.result import CaseResult, Cell, Column
from benchmarks.sample import Sample, figures, in_turns, measure, paired_ratios, spreads
from benchmarks.servers.configuration import write_config
from benchmarks.servers.peers import serve_llama
from benchmarks.servers.target import Target
from benchmarks.servers.truss import serve
from benchmarks.servers.usage import total, usage_by_role

_TRUSS, _LLAMA = "trtllm-truss", "llama.cpp"
_THREADS = (1, 2)
_SLOTS = 32
_KV_TOKENS = 32_768
_CLIENTS = (8, 32)
_TOKENS = 64
_DECODED = 128
_HISTORY_WORDS = 1500
_LONG_WORDS = 3000
_BESIDE = 4
_WORDS = ("river", "glass", "music", "bread", "star", "bridge", "map", "rain", "stone", "wind")
_MORE, _LESS = "more", "less"
_COLUMNS = [
    Column("threads", "threads"),
    Column("question", "question"),
    Column("path", "server"),
    Column("tok_s", "tok/s", 1),
    Column("ttft_p50_ms", "TTFT p50 ms"),
    Column("gap_p50_ms", "gap p50 ms", 1),
    Column("gap_max_ms", "gap max ms"),
    Column("token_cpu_ms", "CPU ms/token", 1),
    Column("extra_ms", "extra ms"),
    Column("answer_s", "s", 1),
    Column("cpu_s", "CPU s", 1),
]
_TEXT = f"""\
`examples/smollm2-135m-cpu` beside the HTTP server of llama.cpp (`xllamacpp`, which `make peers`
installs), with the same GGUF file, {_SLOTS} concurrent requests and {_KV_TOKENS:,} tokens of KV
cache. One thread is `OMP_NUM_THREADS=1` and llama.cpp's `n_threads`, whose threads sleep between
two steps. Requests are streamed `/v1/completions` with new prompts and temperature 0, which ignore
the end of the text; the servers take turns, and both stay up meanwhile. “decode” has a short prompt
and {_DECODED} tokens. “second turn” is the time to the first token of a prompt whose first
{_HISTORY_WORDS:,} words the server has just answered. “schema” is the extra time to the first token
of a JSON schema: “first” right after a start, “new” for each later one. “beside a long prompt” has
{_BESIDE} streams beside a prompt of {_LONG_WORDS:,} words. “start” is from the command to the last
byte of an answer of one token. Ratios are medians over the rounds, with their range."""


@dataclass(frozen=True, slots=True)
class _Question:
    """One comparison.

    Attributes:
        name: name in the table.
        ask: measures one server once; its second argument is the round's number.
        figure: the compared figure.
        better: `more` or `less`.
    """

    name: str
    ask: Callable[[Target, int], Sample]
    figure: str
    better: str


def run(options: Options) -> CaseResult:
    """Measure both servers with one thread and with two."""
    result = CaseResult("peers", "Beside llama.cpp on the CPU", _TEXT, _COLUMNS).begin()
    options.work.mkdir(parents=True, exist_ok=True)
    for threads in _THREADS[:1] if options.quick else _THREADS:
        _Comparison(options, threads, result).run()
    return result


class _Comparison:
    def __init__(self, options: Options, threads: int, result: CaseResult) -> None:
        runtime = {"max_batch_size": _SLOTS, "max_tokens_in_paged_kv_cache": _KV_TOKENS}
        self._config = write_config(options.work / "peers.yaml", EXAMPLE, runtime=runtime)
        self._threads = threads
        self._rounds = options.rounds
        self._is_quick = options.quick
        self._result = result

    def run(self) -> None:
        starts = in_turns(
            {_TRUSS: partial(self._start, self._truss), _LLAMA: partial(self._start, self._llama)},
            self._rounds,
        )
        self._add(_Question("start", _nothing, "answer_s", _LESS), starts)
        self._add(_Question("schema, first", _nothing, "extra_ms", _LESS), starts)
        with self._truss() as truss, self._llama() as llama:
            targets = {_TRUSS: truss, _LLAMA: llama}
            for target in targets.values():
                _decode(target, -1)
            for question in _questions(self._is_quick):
                numbers = {name: iter(range(self._rounds)) for name in targets}
                paths = {
                    name: partial(_ask_next, question, target, numbers[name])
                    for name, target in targets.items()
                }
                self._add(question, in_turns(paths, self._rounds))

    @contextmanager
    def _truss(self) -> Iterator[Target]:
        with serve(self._config, OMP_NUM_THREADS=str(self._threads)) as target:
            yield replace(target, path="/v1/completions")

    def _llama(self) -> AbstractContextManager[Target]:
        return serve_llama(_SLOTS, _KV_TOKENS, self._threads)

    def _start(self, server: Callable[[], AbstractContextManager[Target]]) -> Sample:
        """Time a start, and the first schema after it."""
        begin_s = time.perf_counter()
        with server() as target:
            _run(target, [_completion("The sky is", 1)])
            answer_s = time.perf_counter() - begin_s
            cpu_s = total(usage_by_role(target.pid)).cpu_s
            return {"answer_s": answer_s, "cpu_s": cpu_s, **_schema(target, 0)}

    def _add(self, question: _Question, samples: Mapping[str, list[Sample]]) -> None:
        shown = {column.key for column in _COLUMNS}
        if question.name == "start":
            shown.discard("extra_ms")
        elif question.name == "schema, first":
            shown &= {"extra_ms"}
        for name, taken in samples.items():
            cells: dict[str, Cell] = {k: v for k, v in spreads(taken).items() if k in shown}
            self._result.add(
                threads=float(self._threads), question=question.name, path=name, **cells
            )
        about = f"{self._threads} threads, {question.name}"
        if question.figure == "extra_ms":
            extra = {name: spreads(taken)["extra_ms"] for name, taken in samples.items()}
            told = " and ".join(
                f"{name} {each.shown('.0f', ' ms')}" for name, each in extra.items()
            )
            self._result.find(f"{about}: a schema adds {told}.")
        elif (
            ratio := paired_ratios(samples[_TRUSS], samples[_LLAMA]).get(question.figure)
        ) is None:
            self._result.fault(f"{about}: a server gave no answer.")
        else:
            self._result.find(
                f"{about}: {_TRUSS} has {ratio.as_ratio} {_LLAMA}'s {question.figure} "
                f"({question.better} is better)."
            )


def _questions(is_quick: bool) -> list[_Question]:
    found = [_Question("decode, 1 client", _decode, "tok_s", _MORE)]
    if not is_quick:
        found += [
            _Question(f"{count} clients", partial(_many, count), "tok_s", _MORE)
            for count in _CLIENTS
        ]
    return [
        *found,
        _Question("second turn", _second_turn, "ttft_p50_ms", _LESS),
        _Question("schema, new", _schema, "extra_ms", _LESS),
        *([] if is_quick else [_Question("beside a long prompt", _beside, "gap_max_ms", _LESS)]),
    ]


def _nothing(target: Target, number: int) -> Sample:
    raise NotImplementedError


def _ask_next(question: _Question, target: Target, numbers: Iterator[int]) -> Sample:
    return question.ask(target, next(numbers))


def _decode(target: Target, number: int) -> Sample:
    return _measured(target, [_completion(f"Chapter {number} of the book begins", _DECODED)])


def _many(streams: int, target: Target, number: int) -> Sample:
    chance = random.Random(f"{streams}-{number}")
    lengths = [chance.choice((15, 40, 120, 300)) for _ in range(2 * streams)]
    bodies = [_completion(_words(chance, length), _TOKENS) for length in lengths]
    return _measured(target, bodies, streams)


def _second_turn(target: Target, number: int) -> Sample:
    history = _words(random.Random(f"turn-{number}"), _HISTORY_WORDS)
    _run(target, [_completion(history, 1)])
    return _measured(target, [_completion(f"{history} And then", 8)])


def _schema(target: Target, number: int) -> Sample:
    """Compare the time to the first token with a schema and without, both with a cached head."""
    names = [f"{word}_{number}" for word in random.Random(number).sample(_WORDS, 4)]
    fields: dict[str, Any] = {name: {"type": "string", "maxLength": 12} for name in names}
    fields["count"] = {"type": "integer"}
    schema = {"type": "object", "properties": fields, "required": [*fields]}
    guide = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    chat = replace(target, path="/v1/chat/completions")
    times_ms = []
    for place, more in enumerate(({}, {}, {"response_format": guide})):
        messages = [{"role": "user", "content": f"Describe thing {number}, part {place}."}]
        body = {"messages": messages, "max_tokens": 8, "temperature": 0, "stream": True, **more}
        times_ms.append(_run(chat, [json.dumps({"model": "model", **body})])["ttft_p50_ms"])
    _, without_ms, with_ms = times_ms
    return {"extra_ms": with_ms - without_ms, "ttft_p50_ms": with_ms}


def _beside(target: Target, number: int) -> Sample:
    """Return the longest gap of other streams while a long prompt is processed."""
    chance = random.Random(f"beside-{number}")
    others = [_completion(_words(chance, 20), 4 * _DECODED) for _ in range(_BESIDE)]
    long = _completion(_words(chance, _LONG_WORDS), 1)
    with background_load(_load(target, others, _BESIDE)) as results:
        time.sleep(1)
        _run(target, [long])
    return figures(results[0])


def _measured(target: Target, bodies: list[str], streams: int = 1) -> Sample:
    sample = measure(target, _load(target, bodies, streams))
    return {**sample, "token_cpu_ms": sample["server_cpu_us"] / 1000}


def _run(target: Target, bodies: list[str]) -> Sample:
    return figures(run_load(_load(target, bodies, 1)))


def _load(target: Target, bodies: list[str], streams: int) -> LoadSpec:
    number = len(bodies)
    return LoadSpec(
        "http",
        target.port,
        target.path,
        tuple(bodies),
        streams=streams,
        requests=number,
        patience_s=300,
    )


def _completion(prompt: str, tokens: int) -> str:
    usage = {"stream_options": {"include_usage": True}}
    fields = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True, **usage}
    return json.dumps({"model": "model", "prompt": prompt, **fields})


def _words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(_WORDS, k=count))
