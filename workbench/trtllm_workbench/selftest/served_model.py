"""One served model as a child process, and the results and report of its checks."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import trtllm_truss
import trtllm_workbench
from trtllm_truss import __version__
from trtllm_truss.errors import StartupError, TrussError
from trtllm_truss.local_requests import LOOPBACK
from trtllm_truss.observability.status import STATUS_VARIABLE, State, StatusReader
from trtllm_truss.processes.child import RUN_PREFIX, SHARED_MEMORY, Child
from trtllm_truss.processes.process_guard import descendants, is_alive, name_of
from trtllm_truss.settings.model import Settings
from trtllm_truss.text.tokenizer import TextTokenizer
from trtllm_workbench.selftest.calls import PREDICT, Api, DirectEngine, HttpReply

Figures = Mapping[str, Any]


class CheckVerdict(str, enum.Enum):
    """The outcome of a check; values are those of the report."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Passed:
    """The return value of a check that passed.

    Attributes:
        detail: observation in one line.
        figures: measured values by name, with their units.
    """

    detail: str
    figures: Figures = field(default_factory=dict)


class Failed(Exception):
    """The check failed; the message gives the promise, the observed value and the remedy."""


class Skipped(Exception):
    """The check does not apply here; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check.

    Attributes:
        subject: what was checked, such as "2 ranks"; empty for the machine.
        step: name for `--only` and `--skip`.
        check: name in the table.
        verdict: the outcome.
        detail: one line.
        figures: measured values by name.
        seconds: duration of the check.
    """

    subject: str
    step: str
    check: str
    verdict: CheckVerdict
    detail: str
    figures: Figures
    seconds: float

    def row(self) -> str:
        """Return the line of the table."""
        return f"{self.verdict.value:9}{self.check:28}{self.detail}"


def run_check(subject: str, step: str, check: str, function: Callable[[], Passed]) -> Result:
    """Run one check; an unexpected exception also counts as failed."""
    started = time.monotonic()
    figures: Figures = {}
    try:
        passed = function()
        verdict, detail, figures = CheckVerdict.PASSED, passed.detail, passed.figures
    except Failed as problem:
        verdict, detail = CheckVerdict.FAILED, str(problem)
    except Skipped as reason:
        verdict, detail = CheckVerdict.SKIPPED, str(reason)
    except TrussError as problem:
        verdict, detail = CheckVerdict.FAILED, problem.message
    except Exception as problem:  # noqa: BLE001 - one broken check must not hide the others
        verdict, detail = CheckVerdict.FAILED, f"unexpected {type(problem).__name__}: {problem}"
    seconds = round(time.monotonic() - started, 3)
    return Result(subject, step, check, verdict, " ".join(detail.split()), figures, seconds)


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one run.

    Attributes:
        machine: properties of this machine; no secrets.
        results: in the order of the run.
        seconds: duration of the run.
    """

    machine: Mapping[str, Any]
    results: Sequence[Result]
    seconds: float

    @property
    def status(self) -> int:
        """The exit status: 1 if a check failed or none passed, otherwise 0."""
        verdicts = {result.verdict for result in self.results}
        return int(CheckVerdict.FAILED in verdicts or CheckVerdict.PASSED not in verdicts)

    def summary(self) -> str:
        """Return the last line of the table."""
        counts = [
            f"{sum(result.verdict is verdict for result in self.results)} {verdict.value}"
            for verdict in CheckVerdict
        ]
        return f"{', '.join(counts)} ({self.seconds:.0f} s)"

    def to_json(self) -> str:
        """Return the report to attach to a bug report."""
        content = {
            "trtllm_truss": __version__,
            "status": self.status,
            "seconds": round(self.seconds, 1),
            "machine": self.machine,
            "checks": [asdict(result) for result in self.results],
        }
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


_PR_SET_PDEATHSIG = 1
_PATHS = [
    str(Path(package.__path__[0]).resolve().parent) for package in (trtllm_truss, trtllm_workbench)
]
_PROGRAM = "import sys; del sys.path[0]; from trtllm_truss.__main__ import main; sys.exit(main())"
"""`python -m trtllm_truss` without the current folder, which may be untrusted.

Relative paths in a configuration still refer to it.
"""
_TICK_S = 0.02
_END_LIMIT_S = 60.0


class ChildServer:
    """One run of `trtllm-truss serve`; a context manager that stops it.

    Args:
        truss: the Truss's folder.
        config: its configuration.
        port: HTTP port.
        temporary: folder for temporary files, created here; its path should be short.
        show: receives each line of the server's log.

    Attributes:
        api: its routes.
        seconds: duration of the start.
    """

    def __init__(
        self,
        truss: Path,
        config: Path,
        port: int,
        temporary: Path,
        show: Callable[[str], None],
    ) -> None:
        self.api = Api(port)
        self.seconds = 0.0
        self._command = [
            *(sys.executable, "-c", _PROGRAM, "serve", "--truss", str(truss)),
            *("--config", str(config), "--port", str(port)),
        ]
        self._show = show
        self._temporary = temporary
        self._status_file = temporary.with_suffix(".status")
        self._child: Child | None = None
        self._seen: set[int] = set()

    def __enter__(self) -> ChildServer:
        started = time.monotonic()
        paths = [*_PATHS, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._temporary.mkdir()
        self._status = StatusReader(self._status_file)
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(paths),
                    "TMPDIR": str(self._temporary),
                    STATUS_VARIABLE: str(self._status_file),
                },
                preexec_fn=_end_with_parent,
            )
            self._child = Child(process, on_line=self._show, name="serve")
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        self.seconds = time.monotonic() - started
        self.remember()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill what is still running, and remove the temporary files."""
        if self._child is not None:
            self.end()
            for pid in self.left_processes():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._child.kill()
            self._child.wait()
        self._status.close()
        self._status_file.unlink(missing_ok=True)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def end(self) -> int | None:
        """Send SIGTERM and return the exit status.

        None if the server is still running a minute later.
        """
        assert self._child is not None
        self.remember()
        self._child.terminate()
        return self._child.wait(_END_LIMIT_S)

    def remember(self) -> None:
        """Record the running processes; all of them must be gone at the end."""
        assert self._child is not None
        self._seen |= descendants(self._child.pid)

    def named(self, name: str) -> list[int]:
        """Return the processes below the server with a name, ordered by id."""
        assert self._child is not None
        self.remember()
        return sorted(pid for pid in descendants(self._child.pid) if name_of(pid) == name)

    def left_processes(self) -> list[int]:
        """Return the recorded processes that are still running."""
        return sorted(pid for pid in self._seen if is_alive(pid))

    def left_files(self) -> list[str]:
        """Return shared-memory segments and temporary files of the run."""
        prefixes = tuple(f"{RUN_PREFIX}{pid}_" for pid in self._seen)
        segments = (str(path) for path in _entries(SHARED_MEMORY) if path.name.startswith(prefixes))
        return [*segments, *map(str, _entries(self._temporary))]

    def _wait_until_ready(self) -> None:
        assert self._child is not None
        while (status := self._status.read()) is None or status.state is not State.READY:
            if (exit_status := self._child.wait(_TICK_S)) is not None:
                raise StartupError(self._cause(exit_status))

    def _cause(self, exit_status: int) -> str:
        assert self._child is not None
        status = self._status.read()
        last = status.reason if status is not None else " ".join(self._child.tail[-1:])
        return last or f"`trtllm-truss serve` exited with status {exit_status}"


def is_listening(port: int) -> bool:
    """Return True if anything accepts connections on a loopback port."""
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _entries(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from sorted(folder.iterdir())


PROMPTS = ("Once upon a time there was a little", "Café, naïve, Ærø, 漢字, 😀👍🏽: once more, café")
"""Shorter than a block of any KV cache, so that no answer depends on an earlier one."""

INVOCATIONS = "/invocations"
_ANSWER_TOKENS = 24
_MARGIN_TOKENS = 64


@dataclass(slots=True)
class GreedyAnswer:
    """One greedy answer with its token ids, streamed in LMI's format.

    Attributes:
        prompt: the prompt.
        ids: tokens of the answer.
        text: `generated_text`.
        joined: the texts of the tokens, joined.
        cut_short: the token limit truncated the answer.
    """

    prompt: str
    ids: list[int]
    text: str
    joined: str
    cut_short: bool


@dataclass
class ServedModel:
    """One served model.

    Attributes:
        server: the child.
        direct: its engine.
        tokenizer: its tokenizer.
        settings: its settings.
        batch: requests that the engine runs at once, over all instances.
        context_tokens: limit of prompt and output together.
        cache_tokens: capacity of the KV cache in tokens.
        http_port: Triton's HTTP port.
        quick: measure less.
    """

    server: ChildServer
    direct: DirectEngine
    tokenizer: TextTokenizer
    settings: Settings
    batch: int
    context_tokens: int
    cache_tokens: int
    http_port: int | None = None
    quick: bool = False

    @property
    def api(self) -> Api:
        return self.server.api

    @cached_property
    def prompt_ids(self) -> list[int]:
        """The first prompt, encoded."""
        return self.tokenizer.encode(PROMPTS[0])

    @property
    def long(self) -> dict[str, Any]:
        """A predict body whose answer is as long as context and KV cache allow."""
        return {"prompt": PROMPTS[0], "max_tokens": self.longest_answer, "ignore_eos": True}

    @property
    def longest_answer(self) -> int:
        """Tokens available to each of a whole batch of answers to the first prompt."""
        tokens = min(self.context_tokens, self.cache_tokens // self.batch)
        return max(1, tokens - len(self.prompt_ids) - _MARGIN_TOKENS)

    @cached_property
    def answers(self) -> list[GreedyAnswer]:
        """A greedy answer to each prompt.

        Raises:
            Failed: an answer is an error or incomplete.
        """
        return [self._ask(prompt) for prompt in PROMPTS]

    def greedy(self, prompt: str = PROMPTS[0], **fields: Any) -> HttpReply:
        """Ask predict for a greedy answer."""
        return expect(self.api.post(PREDICT, greedy_body(prompt, **fields)))

    def _ask(self, prompt: str) -> GreedyAnswer:
        parameters = {"max_new_tokens": _ANSWER_TOKENS, "details": True, "do_sample": False}
        body = {"inputs": prompt, "parameters": parameters, "stream": True}
        lines = expect(self.api.post(INVOCATIONS, body)).lines()
        last = lines[-1]
        if message := last["token"].get("error_msg"):
            raise Failed(f"the stream of {INVOCATIONS} ended with the error: {message}")
        tokens = [line["token"] for line in lines if line["token"]["id"] >= 0]
        return GreedyAnswer(
            prompt,
            [token["id"] for token in tokens],
            last["generated_text"],
            "".join(token["text"] for token in tokens),
            last["details"]["finish_reason"] == "length",
        )

    def decode(self, ids: list[int]) -> str:
        """Decode all ids at once with the model's tokenizer.

        Raises:
            Failed: the tokenizer fails on them.
        """
        try:
            return self.tokenizer.decode(ids)
        except TrussError as error:
            raise Failed(f"the tokenizer does not decode the engine's ids: {error}") from error


def greedy_body(prompt: str, **fields: Any) -> dict[str, Any]:
    """Return predict's body for a greedy answer."""
    return {"prompt": prompt, "max_tokens": _ANSWER_TOKENS, "top_k": 1, **fields}


def expect(reply: HttpReply, status: int = 200) -> HttpReply:
    """Return a reply with the expected status and a complete body.

    Raises:
        Failed: the status differs, or the connection was cut.
    """
    if reply.status != status:
        raise Failed(f"expected HTTP {status}, received {reply.complaint}")
    if reply.is_cut:
        raise Failed(f"the response was cut off after {len(reply.body)} bytes")
    return reply
