"""Guides are checked in a few processes with limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import FAKES
from tests.support.waiting import PATIENCE_S, settles

from trtllm_truss.guides import validator as validator_module
from trtllm_truss.guides.guide import CheckFailed, GuideFault, TooManyGuides
from trtllm_truss.guides.validator import GuideValidator
from trtllm_truss.requests import Guide

FAKE_WORKER = str(FAKES / "compiler_worker.py")
TOO_LARGE = "it is too large or too deeply nested; simplify it."
CRASHES = (
    "XGrammar cannot compile it: it is too large, too deeply nested or allows no character; "
    "simplify it."
)


@pytest.fixture
def guides(request: pytest.FixtureRequest) -> Iterator[GuideValidator]:
    """Check guides; the parameter is the limit in seconds."""
    check = GuideValidator([FAKE_WORKER], compile_limit_s=getattr(request, "param", 1.5))
    yield check
    check.close()


def order(text: str) -> Guide:
    return Guide("ebnf_grammar", text)


def outcome(result: Future[int]) -> str | None:
    error = result.exception(PATIENCE_S)
    assert error is None or isinstance(error, GuideFault), error
    return error and str(error)


def processes(group: int) -> list[int]:
    """Return the ids of the processes in a session."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == group and fields[0] != "Z":
                found.append(int(path.name))
    return found


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("follow", None),
        ("raise Unclosed bracket", "Unclosed bracket"),
        ("allocate", TOO_LARGE),
        ("hold 40", "compiled, it takes 40 MiB; at most 32 are allowed."),
        ("crash", CRASHES),
        ("killed", CRASHES),
        ("overflow", "it has a number that XGrammar cannot represent; use a smaller one."),
        ("grow", "each token takes longer than the one before; make it less ambiguous."),
        ("crawl", "its tokens take too long to find; make it less ambiguous."),
        (
            "a{1000}" * 200,
            "with its repetitions written out it has more than 100000 parts; lower their counts.",
        ),
        ("x" * 65_537, "it has 65537 characters; at most 65536 are allowed."),
    ],
)
def test_every_failure_of_a_guide_is_reported(
    guides: GuideValidator, text: str, fault: str | None
) -> None:
    assert outcome(guides.check(order(text))) == fault
    assert outcome(guides.check(order("follow"))) is None


SPELLED_REFERENCES = """
import json
from trtllm_truss.guides import compiler_worker
from trtllm_truss.requests import Guide

compiler_worker.MEMORY_LIMIT_BYTES = 1 << 25
large = {"properties": {str(number): 1 for number in range(3000)}}
references = [{"$ref": f"#/d/{'0' * length}"} for length in range(1, 200)]  # all of them to `large`
guide = Guide("json_schema", json.dumps({"anyOf": references, "d": [large]}))
compiles = lambda *_: print("compiles")
print(compiler_worker._attempt(guide, compiles, False).fault)
"""


def test_the_memory_for_reading_a_guide_is_limited() -> None:
    """The parts of 199 spellings of one reference take 90 MB, before the compiler is asked."""
    command = [sys.executable, "-c", SPELLED_REFERENCES]
    assert subprocess.run(command, capture_output=True, text=True).stdout == f"{TOO_LARGE}\n"


@pytest.mark.parametrize("guides", [0.5], indirect=True)
def test_quick_guides_pass_slow_ones(
    guides: GuideValidator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validator_module, "_FIRST_LIMIT_S", 0.1)
    slow = [guides.check(order(f"burn {number}")) for number in range(3)]
    quick = [guides.check(order(f"follow {number}")) for number in range(20)]
    ended: list[Future[Any]] = []
    for result in (*slow, *quick):
        result.add_done_callback(ended.append)
    assert [outcome(result) for result in quick] == [None] * 20
    assert {outcome(result) for result in slow} == {
        "it takes more than 0.5 s to compile; simplify it."
    }
    assert settles(lambda: len(ended) == len(slow) + len(quick))
    assert ended[-1] in slow


@pytest.mark.parametrize("guides", [0.5], indirect=True)
def test_excess_slow_guides_are_refused(
    guides: GuideValidator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validator_module, "_FIRST_LIMIT_S", 0.1)
    monkeypatch.setattr(validator_module, "MAX_SLOW", 1)
    # One runs and one waits, so of eight some are refused however their processes get the cores.
    slow = [guides.check(order(f"burn {number}")) for number in range(8)]
    errors = [result.exception(PATIENCE_S) for result in slow]
    assert {type(error) for error in errors} == {GuideFault, TooManyGuides}
    assert outcome(guides.check(order("follow"))) is None


def test_excess_guides_are_refused(guides: GuideValidator, tmp_path: Path) -> None:
    assert outcome(guides.check(order("follow"))) is None
    gate = tmp_path / "gate"
    running = [guides.check(order(f"wait {gate} {number}")) for number in range(2)]
    assert settles(lambda: len(guides._running) == 2)
    waiting = [
        guides.check(order(f"follow {number}")) for number in range(validator_module.MAX_WAITING)
    ]
    refused = guides.check(order("and one more"))
    assert refused.done()
    with pytest.raises(TooManyGuides, match=r"\(maximum queue size 32\); try again shortly"):
        refused.result()
    waiting[0].cancel()  # frees its place in the queue
    last = guides.check(order("and one more"))
    assert not last.done()
    for number in range(2):
        Path(f"{gate} {number}").touch()
    assert [outcome(result) for result in (*running, *waiting[1:], last)] == [None] * 34


def test_large_guides_give_way_to_small_ones(guides: GuideValidator, tmp_path: Path) -> None:
    """Fill the queue with large guides; two of the small ones come before all but one of them."""
    notes, gates = tmp_path / "notes", [tmp_path / "gate 0", tmp_path / "gate 1"]
    running = [guides.check(order(f"wait {gate}")) for gate in gates]
    assert settles(lambda: len(guides._running) == 2)
    large = [
        guides.check(order(f"note {notes} #{'(a|b){900}' * 2} {number}"))
        for number in range(validator_module.MAX_WAITING)
    ]
    small = [guides.check(order(f"note {notes}{number}")) for number in range(3)]
    assert [result.done() for result in large[-4:]] == [False, True, True, True]
    ended: list[Future[Any]] = []
    for result in (*large[:-3], *small):
        result.add_done_callback(ended.append)
    gates[0].touch()  # one at a time from here on
    assert settles(lambda: {*small} <= {*ended})
    before = ended[: max(map(ended.index, small))]
    assert sum(result in large for result in before) <= 4
    gates[1].touch()
    assert [outcome(result) for result in (*running, *small, *large[:-3])] == [None] * 34


def test_two_guides_run_concurrently_and_results_are_cached(
    guides: GuideValidator, tmp_path: Path
) -> None:
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    blocked = guides.check(order(f"wait {gate}"))
    same = [guides.check(order(f"note {notes}")) for _ in range(8)]
    assert [outcome(result) for result in same] == [None] * 8
    assert not blocked.done()
    assert guides.check(order(f"note {notes}")).done()
    assert notes.read_text() == "compiled\n"
    gate.touch()
    assert outcome(blocked) is None


def test_the_memory_of_a_compiled_guide_is_measured(guides: GuideValidator) -> None:
    """Ask twice: the second answer is remembered."""
    assert [
        guides.check(order("hold 8")).result(PATIENCE_S).kept_bytes >> 20 for _ in range(2)
    ] == [8, 8]
    assert guides.check(order("follow")).result(PATIENCE_S).kept_bytes < 1 << 20


def test_cancelling_affects_one_caller(guides: GuideValidator, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    left, stays = (guides.check(order(f"wait {gate}")) for _ in range(2))
    left.cancel()
    gate.touch()
    assert outcome(stays) is None


def test_unwanted_guides_are_not_checked(guides: GuideValidator, tmp_path: Path) -> None:
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    blocked = [guides.check(order(f"wait {gate} {number}")) for number in range(2)]
    assert settles(lambda: len(guides._running) == 2)
    guides.check(order(f"note {notes}")).cancel()
    for number in range(2):
        Path(f"{gate} {number}").touch()
    assert [outcome(result) for result in (*blocked, guides.check(order("follow")))] == [None] * 3
    assert not notes.exists()


def test_a_dead_worker_is_replaced(guides: GuideValidator, tmp_path: Path) -> None:
    running = guides.check(order(f"wait {tmp_path / 'gate'}"))
    assert settles(lambda: bool(guides._running and guides._worker))
    assert guides._worker is not None
    os.killpg(guides._worker.pid, signal.SIGKILL)
    assert isinstance(running.exception(PATIENCE_S), CheckFailed)
    assert outcome(guides.check(order("follow"))) is None


REASON = "Guides cannot be checked: the compiler worker ended (3)."


def test_a_worker_that_cannot_start_is_not_the_guides_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another try follows after a minute; its own words are in the log."""
    now_s = 0.0
    starts = tmp_path / "starts"
    guides = GuideValidator([FAKE_WORKER, "broken", str(starts)], clock=lambda: now_s)

    def failures(count: int) -> set[str]:
        errors = [guides.check(order("follow")).exception(PATIENCE_S) for _ in range(count)]
        assert {type(error) for error in errors} == {CheckFailed}
        return {*map(str, errors)}

    assert failures(5) == {REASON}
    assert starts.read_text() == "started\n"
    now_s = 61.0
    assert failures(5) == {REASON}
    assert starts.read_text() == "started\n" * 2
    guides.close()
    lines = [record.getMessage() for record in caplog.records]
    assert (
        lines
        == [
            f"{REASON} Requests with a guide get 503. "
            "Traceback\nModuleNotFoundError: No module named 'torch'"
        ]
        * 2
    )


def test_a_start_tells_what_is_wrong(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    starts = tmp_path / "starts"
    guides = GuideValidator([FAKE_WORKER, "broken", str(starts)])
    guides.start().join(PATIENCE_S)
    assert settles(lambda: "No module named 'torch'" in caplog.text)
    assert "get 503. Traceback\nModuleNotFoundError: No module named 'torch'" in caplog.text
    assert str(guides.check(order("follow")).exception(PATIENCE_S)) == REASON
    assert starts.read_text() == "started\n"
    guides.close()


def test_a_started_program_is_warm_and_checks_the_first_guide(
    guides: GuideValidator, tmp_path: Path
) -> None:
    """Three forks, each with its watcher, have compiled a guide before the start returns."""
    guides.start().join(PATIENCE_S)
    worker = guides._worker
    assert worker is not None
    assert worker.has_started
    before = {*processes(worker.pid)}
    assert len(before) == 7
    running = guides.check(order(f"wait {tmp_path / 'gate'}"))
    assert settles(lambda: bool(guides._running))
    assert guides._worker is worker
    (tmp_path / "gate").touch()
    assert outcome(running) is None


def test_a_fork_that_was_killed_before_it_had_a_guide_is_replaced(guides: GuideValidator) -> None:
    guides.start().join(PATIENCE_S)
    assert guides._worker is not None
    parents = {pid: parent_of(pid) for pid in processes(guides._worker.pid)}
    for pid, parent in parents.items():
        if parents.get(parent) == guides._worker.pid:  # a watcher's child
            os.kill(pid, signal.SIGKILL)
    for number in range(4):
        assert outcome(guides.check(order(f"follow {number}"))) is None


def test_a_killed_watcher_is_replaced(guides: GuideValidator) -> None:
    guides.start().join(PATIENCE_S)
    assert guides._worker is not None
    worker = guides._worker.pid
    before = processes(worker)
    watchers = [pid for pid in before if pid != worker and parent_of(pid) == worker]
    assert len(watchers) == 3
    for pid in watchers:
        os.kill(pid, signal.SIGKILL)
    assert settles(lambda: processes(worker) == [worker])
    for number in range(4):
        assert outcome(guides.check(order(f"follow {number}"))) is None


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_program_that_ends_is_replaced_by_a_warm_one(guides: GuideValidator) -> None:
    guides.start().join(PATIENCE_S)
    first = guides._worker
    assert first is not None
    os.killpg(first.pid, signal.SIGKILL)
    assert settles(lambda: guides._worker not in (None, first) and guides._worker.has_started)


def test_closing_ends_a_start() -> None:
    guides = GuideValidator([FAKE_WORKER])
    started = guides.start()
    guides.close()
    started.join(PATIENCE_S)
    assert guides._worker is None or not processes(guides._worker.pid)


def test_what_libraries_say_of_a_guide_is_not_logged(
    guides: GuideValidator, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    assert outcome(guides.check(order("follow s3cr3t"))) is None
    os.killpg(guides._worker.pid, signal.SIGKILL)
    assert settles(lambda: bool(caplog.records))
    assert "s3cr3t" not in caplog.text + "".join(capfd.readouterr())


@pytest.mark.parametrize("failure", ["raises", "crashes"])
def test_a_compiler_that_compiles_nothing_is_not_the_guides_fault(failure: str) -> None:
    guides = GuideValidator([FAKE_WORKER, failure])
    error = guides.check(order("follow")).exception(PATIENCE_S)
    guides.close()
    assert isinstance(error, CheckFailed)
    assert str(error) == "Guides cannot be checked: the compiler process failed."


def test_threads_of_the_vocabulary_are_idle_before_a_fork() -> None:
    """A copy of a thread's lock would block the guide for ever."""
    guides = GuideValidator([FAKE_WORKER, "busy"])
    assert outcome(guides.check(order("follow"))) is None
    guides.close()


def test_checks_have_a_low_priority_and_end_with_their_owner(
    guides: GuideValidator, tmp_path: Path
) -> None:
    running = [guides.check(order(f"wait {tmp_path / 'gate'} {number}")) for number in range(2)]
    waiting = guides.check(order("follow " + "x" * 1000))  # larger than those: it comes last
    assert settles(lambda: len(guides._running) == 2 and guides._worker is not None)
    assert guides._worker is not None
    group = guides._worker.pid
    lower = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)

    def lowered() -> int:
        found = [os.getpriority(os.PRIO_PROCESS, pid) for pid in processes(group)]
        return found.count(lower)

    assert settles(lambda: lowered() == 2)  # a guide that takes long; the watchers do nothing
    guides.close()
    assert settles(lambda: not processes(group))
    assert waiting.cancelled()
    assert all(isinstance(result.exception(), CheckFailed) for result in running)
    assert guides.check(order("follow")).cancelled()


def test_closing_ends_a_program_that_is_starting() -> None:
    guides = GuideValidator([FAKE_WORKER])
    result = guides.check(order("follow"))
    guides.close()
    assert result.cancelled() or isinstance(result.exception(), CheckFailed)


def test_the_program_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from trtllm_truss.guides.validator import GuideValidator, Guide\n"
        "guides = GuideValidator([sys.argv[1]])\n"
        "guides.check(Guide('regex', 'follow')).result()\n"
        "guides.check(Guide('regex', 'wait ' + sys.argv[2]))\n"
        "print(guides._worker.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, FAKE_WORKER, str(tmp_path / "gate")],
        stdout=subprocess.PIPE,
        check=False,
    )
    group = int(done.stdout)
    assert settles(lambda: not processes(group))
