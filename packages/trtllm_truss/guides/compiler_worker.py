"""A program that compiles guides under limits.

XGrammar in the engine has no limits: a deeply nested guide overflows the stack, a small one can
compile for hours, and with an ambiguous one each token is slower than the last. This program
compiles the guide with the same library and vocabulary, and generates tokens with it.

Protocol, one JSON array per line: input `[number, limit_s, *guide]`, with the fields of `Guide`;
output `[number, verdict, reason, kept_bytes]`, after a first line "ready". For a valid schema, the
reason is a keyword without effect, or null. Lines with the verdict `part` precede the verdict on a
schema: their joined texts are the grammar to send instead. The program loads the vocabulary once
and forks for each guide, so no guide can kill it. Three forks are made in advance and have compiled
a trivial guide before "ready". When its input ends, it is killed with its children. A slow guide is
compiled at low priority, and so are guides that arrive without a pause.

`python -m trtllm_truss.guides.compiler_worker INFO` runs the worker for TensorRT-LLM. INFO is the
file of `xgrammar_tokenizer_info_path`. TensorRT-LLM requires XGrammar's Python package, so its
image contains it. Without the package only length, depth and repetitions are checked.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import json
import mmap
import os
import re
import resource
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

from trtllm_truss.guides.guide import (
    GuideFault,
    find_endless,
    find_excess,
    find_misread_pair,
    find_nul,
)
from trtllm_truss.guides.json_schema import convert_schema
from trtllm_truss.guides.plain_schemas import is_plain
from trtllm_truss.guides.schema_parts import find_foreign_reference
from trtllm_truss.requests import Guide

# mallinfo(3)
_FIELDS = [
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
]


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def allocated_bytes() -> int:
    """Return the bytes allocated through the C library, or resident memory without glibc 2.33.

    Resident memory misses allocations in freed pages that are still resident: four of five
    megabytes of a compiled guide.
    """
    try:
        count = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()
    count.restype = _Counts
    counts = count()
    return int(counts.uordblks + counts.hblkhd)


BEGIN_LIMIT_S = 0.25
"""CPU time limit to the first token of a compiled guide; the engine's step takes as long."""

DRAWN_TOKENS = 100
DRAWING_LIMIT_S = 0.5
"""CPU time limit for so many tokens."""

PLAIN_TOKENS, _PLAIN_LIMIT_S = 8, 0.02
"""Number of tokens sufficient for a plain schema, if they take no more than this CPU time."""

_TRUSTED_CHARACTERS = 4096
"""Length of a plain schema's grammar up to which an engine may compile it unchecked.

GenAI 2026.4 takes 10 to 80 ms for one (the shortest: 10), and at most `_TRUSTED_BYTES` of memory
for a character (1,500 random ones).
"""
_TRUSTED_BYTES = 320

MEMORY_LIMIT_BYTES = 1 << 29
"""Address space for reading and compiling a guide."""

KEPT_LIMIT_BYTES = 1 << 25
"""Maximum memory of a compiled guide, which the engine caches."""

NOTHING_ALLOWED = "no text fits it: in some place it allows no token; give it one."

_STUCK_S = 30.0  # without CPU time: a busy machine gives a low priority little, but some
_IDLE_LIMIT_S, _IDLE_CHECK_S = 5.0, 0.01
_ACTIVITY = ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
_NICENESS = 10
_QUICK_S = 0.1
_SPARES = 3
"""More than the guides checked at once, for guides that follow one another."""
_SILENCE_S = 0.05
_READ_BYTES = 1 << 16
_GROWTH = 4  # maximum ratio of the second half's time to the first half's
_GROWTH_FROM_S = 0.05
_REASON_CHARACTERS = 300
_PART_CHARACTERS = 300  # of at most 12 bytes per line
_NAME_CHARACTERS = 64
_SOURCE_PLACE = re.compile(r"^\[[\d:]+\] \S+: (Check failed: .*? is false: )?")
_SMALLEST = Guide("regex", "a")
_TRIVIAL_SCHEMA = Guide("json_schema", '{"type": "boolean"}', fixes_blanks=True)
_COMMON_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "number": {"type": "number"},
            "list": {"type": "array", "items": {"type": "string"}},
            "object": {"type": "object"},
        },
    }
)
_TOO_LARGE = "it is too large or too deeply nested; simplify it."
_CRASHES = (
    "XGrammar cannot compile it: it is too large, too deeply nested or allows no character; "
    "simplify it."
)
_COMPILER_FAILED = "Guides cannot be checked: the compiler process failed."


class GuideVerdict(str, Enum):
    PART = "part"  # not yet one
    GOOD = "good"
    FAULTY = "faulty"
    SLOW = "slow"  # not yet one
    FAILED = "failed"  # for a reason other than the guide


class Follow(Protocol):
    """Compiles guides and generates tokens with them."""

    def __call__(self, guide: Guide, tokens: int, on_token: Callable[[], None]) -> None:
        """Compile a guide, or take it from the cache, and generate tokens.

        Args:
            tokens: number of tokens, unless the output ends before.
            on_token: called after each token; optional for a single one.

        Raises:
            RuntimeError: the guide is invalid, or allows no token where it must continue.
        """


class Trial(NamedTuple):
    """The result of a check.

    Attributes:
        fault: as in `GuideFault`; None for a good guide.
        kept_bytes: memory of the compiled guide.
        grammar: text compiled in place of the schema, if any.
        unkept: keyword of the schema without effect, if any.
    """

    fault: str | None
    kept_bytes: int = 0
    grammar: str | None = None
    unkept: str | None = None


def serve(
    load: Callable[[], Follow],
    *,
    brackets_only: bool,
    trusts_plain: bool = False,
) -> NoReturn:
    """Compile the guides on standard input; never returns.

    Args:
        load: loads the vocabulary. Its threads do not exist in the forked processes; they must
            become idle and hold no lock.
        brackets_only: see `find_misread_pair`.
        trusts_plain: do not compile a short plain schema, for an engine that compiles it beside its
            requests and reports a fault.
    """
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print
    follow = load()
    _wait_for_idle_threads()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (sys.stdout, sys.stderr):
        os.dup2(nowhere, output.fileno())  # libraries repeat parts of guides
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    gc.freeze()  # a collection in a fork would copy what it shares
    spares = _Spares(_Trials(answers, follow, brackets_only, trusts_plain))
    spares.fill(wait=True)
    os.write(answers, b"ready\n")
    for line in _lines(on_silence=spares.fill):
        if not spares.give(line):
            _answer(answers, json.loads(line)[0], GuideVerdict.FAILED, _COMPILER_FAILED)
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("unreachable")


def _lines(on_silence: Callable[[], None]) -> Iterator[bytes]:
    """Yield the lines of the standard input.

    Args:
        on_silence: called `_SILENCE_S` after the last line.
    """
    rest, is_due = b"", False
    while True:
        if is_due and not select.select([0], [], [], _SILENCE_S)[0]:
            on_silence()
            is_due = False
        if not (part := os.read(0, _READ_BYTES)):
            return
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            is_due = True
            yield line


class _Spares:
    """Warm processes that each wait for a guide; the next ones are forked while no guides arrive.

    Processes forked on demand, because too many guides arrived, have a low priority.
    """

    def __init__(self, trials: _Trials) -> None:
        self._trials = trials
        self._inputs: deque[int] = deque()

    def fill(self, *, wait: bool = False) -> None:
        """Fork the missing processes.

        Args:
            wait: until each has compiled the smallest guide or failed.
        """
        warming = [self._fork() for _ in range(_SPARES - len(self._inputs))]
        for descriptor in warming:
            if wait:
                os.read(descriptor, 1)
            os.close(descriptor)

    def give(self, line: bytes) -> bool:
        """Pass a line to one of them; return False if all have been killed."""
        for _ in range(_SPARES + 1):
            if not self._inputs:
                os.close(self._fork(niceness=_NICENESS))
            with contextlib.suppress(BrokenPipeError):
                with open(self._inputs.popleft(), "wb", buffering=0) as pipe:  # noqa: PTH123
                    pipe.write(line)
                return True
        return False

    def _fork(self, niceness: int = 0) -> int:
        """Fork one process; return a descriptor that is closed once it is warm."""
        lines, given = os.pipe()
        warms, warmed = os.pipe()
        if os.fork() == 0:
            for descriptor in (given, warms, *self._inputs):
                os.close(descriptor)
            os.nice(niceness)
            self._trials.run(lines, warmed)
        os.close(lines)
        os.close(warmed)
        self._inputs.append(given)
        return warms


def _wait_for_idle_threads() -> None:
    """Wait until no other thread is running, for at most `_IDLE_LIMIT_S`.

    A fork copies locks held by running threads, and nobody releases the copies; OpenVINO's threads
    keep running for a moment after a model is compiled. The limit applies to CPU time while a
    thread runs, which a busy machine grants slowly to a low priority, and to the number of checks
    while none does.
    """
    cpu_limit_s, looks = time.process_time() + _IDLE_LIMIT_S, 0
    before: dict[str, list[str]] = {}
    while time.process_time() < cpu_limit_s and looks * _IDLE_CHECK_S < _IDLE_LIMIT_S:
        now = _other_threads()
        if now == before and all("S (sleeping)" in status for status in now.values()):
            return
        looks += not any("R (running)" in status for status in now.values())
        before = now
        time.sleep(_IDLE_CHECK_S)


def _other_threads() -> dict[str, list[str]]:
    """Return state and context switches of each other thread, from /proc/PID/status."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        if task.name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError):  # it has exited
            lines = (task / "status").read_text(encoding="utf-8").splitlines()
            fields = (line.partition(":\t") for line in lines)
            found[task.name] = [value for name, _, value in fields if name in _ACTIVITY]
    return found


@dataclass(frozen=True)
class _Trials:
    """Trials of one guide each, in a fork of a process that watches it.

    Attributes:
        answers: descriptor for verdicts.
        brackets_only: see `find_misread_pair`.
        trusts_plain: see `serve`.
    """

    answers: int
    follow: Follow
    brackets_only: bool
    trusts_plain: bool

    def run(self, lines: int, warmed: int) -> NoReturn:
        """Wait for a line, have its guide tried, and report for the fork if a signal kills it.

        Args:
            lines: descriptor of the line; closing it stops both processes.
            warmed: a descriptor to close once the compiler works.
        """
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            begins = mmap.mmap(-1, 1)  # shared with the fork: it has read its guide
            child, given = self._fork(begins, lines, warmed)
            os.close(warmed)
            with open(lines, "rb") as pipe:
                line = pipe.read()
            status = self._hand_over(line, child, given)
            if not line:
                os._exit(0)
            if status and not begins[0]:  # killed while waiting, for example because memory ran out
                status = self._hand_over(line, *self._fork(begins))
            if status:
                number = json.loads(line)[0]
                _answer(self.answers, number, *_death(-status, has_begun=bool(begins[0])))
        finally:
            os._exit(1)

    def _fork(self, begins: mmap.mmap, *inherited: int) -> tuple[int, int]:
        """Fork; return the process id and a descriptor for the line.

        Args:
            begins: set to 1 by the fork once it has read its line.
            inherited: descriptors that the fork closes, the last one once it is warm.
        """
        reads, given = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for descriptor in (given, *inherited[:-1]):
                    os.close(descriptor)
                self.follow(_SMALLEST, 1, lambda: None)  # allocates what all guides share
                with contextlib.suppress(GuideFault, RuntimeError):
                    _attempt_schema(_TRIVIAL_SCHEMA, self.follow)
                for descriptor in inherited[-1:]:
                    os.close(descriptor)
                with open(reads, "rb") as pipe:  # noqa: PTH123 - a descriptor
                    line = pipe.read()
                if line:
                    begins[0] = 1
                    self._try(line)
                os._exit(0)
            finally:
                os._exit(1)
        os.close(reads)
        return child, given

    def _hand_over(self, line: bytes, child: int, given: int) -> int:
        """Pass a fork its line; return its status once it has exited, negative for a signal."""
        with contextlib.suppress(BrokenPipeError), open(given, "wb") as pipe:
            pipe.write(line)
        _end_if_stuck(child)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def _try(self, line: bytes) -> None:
        number, limit_s, *guide = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        trial = _attempt(Guide(*guide), self.follow, self.brackets_only, self.trusts_plain)
        grammar = "" if trial.fault else trial.grammar or ""
        for start in range(0, len(grammar), _PART_CHARACTERS):
            part = grammar[start : start + _PART_CHARACTERS]
            _answer(self.answers, number, GuideVerdict.PART, part)
        verdict = GuideVerdict.FAULTY if trial.fault else GuideVerdict.GOOD
        _answer(self.answers, number, verdict, trial.fault or trial.unkept, trial.kept_bytes)


def _end_if_stuck(child: int) -> None:
    """Wait for a child to exit; kill one that uses no CPU time for `_STUCK_S`.

    Most guides take milliseconds. After `_QUICK_S` the child gets a low priority.
    """
    ended = os.pidfd_open(child)
    used_s = -1.0
    if not select.select([ended], [], [], _QUICK_S)[0]:
        _lower_priority(child)
    while not select.select([ended], [], [], _STUCK_S)[0]:
        before_s, used_s = used_s, _used_s(child)
        if used_s == before_s:
            os.kill(child, signal.SIGALRM)


def _lower_priority(process: int) -> None:
    lowest = os.getpriority(os.PRIO_PROCESS, os.getppid()) + _NICENESS
    with contextlib.suppress(OSError):  # it has exited
        for task in Path(f"/proc/{process}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(task.name), lowest)


def _used_s(process: int) -> float:
    return time.clock_gettime(~process << 3 | 2)  # clock_getcpuclockid(3)


def _death(number: int, *, has_begun: bool) -> tuple[GuideVerdict, str]:
    """Map the signal that killed a process; a negative number is an exit status.

    Args:
        has_begun: the compiler has compiled another guide, and this one was started.
    """
    if number == signal.SIGPROF:
        return GuideVerdict.SLOW, "it takes too long to compile; simplify it."
    if number == signal.SIGVTALRM:
        return GuideVerdict.FAULTY, "its tokens take too long to find; make it less ambiguous."
    if number == signal.SIGALRM:
        return GuideVerdict.FAILED, "Guides cannot be checked: there was no result in time."
    if number < 0 or not has_begun:
        return GuideVerdict.FAILED, _COMPILER_FAILED
    return GuideVerdict.FAULTY, _CRASHES


def _answer(
    answers: int, number: int, verdict: GuideVerdict, text: str | None, kept_bytes: int = 0
) -> None:
    line = json.dumps([number, verdict.value, text, kept_bytes])
    os.write(answers, line.encode() + b"\n")  # < PIPE_BUF


def brief(reason: str) -> str:
    """Shorten an XGrammar error to its first line, without the source location."""
    return _SOURCE_PLACE.sub("", reason.strip()).partition("\n")[0][:_REASON_CHARACTERS]


def _attempt(
    guide: Guide,
    follow: Follow,
    brackets_only: bool,
    trusts_plain: bool = False,
) -> Trial:
    """Try a guide after another one was compiled, so that any error is this guide's.

    Args:
        brackets_only: see `find_misread_pair`.
        trusts_plain: see `serve`.
    """
    _limit_memory()
    try:
        if fault := _fault_of_text(guide, brackets_only):
            return Trial(fault)
    except ValueError as error:
        return Trial(f"it is not JSON ({error}); send a JSON schema.")
    except (MemoryError, RecursionError):
        return Trial(_TOO_LARGE)
    try:
        if guide.language == "json_schema":
            return _attempt_schema(guide, follow, trusts_plain=trusts_plain)
        return Trial(*_measure(guide, follow))
    except GuideFault as fault:
        return Trial(str(fault))
    except RuntimeError as error:
        return Trial(brief(str(error)))
    except (MemoryError, RecursionError):
        return Trial(_TOO_LARGE)
    except OverflowError:
        return Trial("it has a number that XGrammar cannot represent; use a smaller one.")
    except Exception as error:  # noqa: BLE001 - XGrammar's own are of any class, without a text
        return Trial(f"XGrammar cannot compile it ({type(error).__name__}); simplify it.")


def _attempt_schema(guide: Guide, follow: Follow, *, trusts_plain: bool = False) -> Trial:
    """Try the grammar of a schema.

    Raises:
        GuideFault: the schema has no grammar.
    """
    converted = convert_schema(guide.text, any_blanks=not guide.fixes_blanks)
    unkept = next(iter(converted.unkept), None)
    if unkept and guide.is_strict:
        return Trial(_not_strict("it", unkept))
    for name, part in guide.strict_parts:
        for keyword in convert_schema(part, any_blanks=False).unkept:
            return Trial(_not_strict(name, keyword))
    made = Guide("ebnf_grammar", converted.grammar)
    if rule := find_endless(made):
        return Trial(_endless(rule))
    is_known = guide.fixes_blanks and is_plain(json.loads(guide.text))
    length = len(made.text)
    if trusts_plain and is_known and length <= _TRUSTED_CHARACTERS and made.text.isascii():
        return Trial(None, length * _TRUSTED_BYTES, made.text, unkept)
    return Trial(*_measure(made, follow, is_plain=is_known), made.text, unkept)


def _not_strict(name: str, keyword: str) -> str:
    return f"{name} is strict, but {keyword} has no effect; leave it out, or send strict: false."


def _fault_of_text(guide: Guide, brackets_only: bool) -> str | None:
    if fault := find_excess(guide):
        return fault
    if find_nul(guide):
        return "it has the character U+0000, which XGrammar misreads; leave it out."
    if pair := find_misread_pair(guide, brackets_only=brackets_only):
        return (
            f"it has {pair!r}, two characters that XGrammar reads as one in a name, a value "
            "or brackets; separate them, or escape one."
        )
    if guide.language == "json_schema" and (found := find_foreign_reference(guide.text)):
        return (
            f"it has {found}, which is not followed; refer to '#', or to a part of the schema by "
            "'#/…'."
        )
    if rule := find_endless(guide):
        return _endless(rule)
    return None


def _endless(rule: str) -> str:
    rule = rule[:_NAME_CHARACTERS]
    return f"no text fits it: {rule} never ends; give it an alternative that does."


def _measure(guide: Guide, follow: Follow, *, is_plain: bool = False) -> tuple[str | None, int]:
    kept = allocated_bytes()
    follow(guide, 1, lambda: None)
    kept = allocated_bytes() - kept
    if kept > KEPT_LIMIT_BYTES:
        limit = KEPT_LIMIT_BYTES >> 20
        return f"compiled, it takes {kept >> 20} MiB; at most {limit} are allowed.", kept
    return _slowness(guide, follow, is_plain=is_plain), max(0, kept)


def _slowness(guide: Guide, follow: Follow, *, is_plain: bool) -> str | None:
    signal.setitimer(signal.ITIMER_VIRTUAL, DRAWING_LIMIT_S)
    if is_plain:
        times = _draw(guide, follow, PLAIN_TOKENS)
        if times[-1] - times[0] <= _PLAIN_LIMIT_S:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            return None
    times = _draw(guide, follow, DRAWN_TOKENS)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if len(times) > 1 and times[1] - times[0] > BEGIN_LIMIT_S:
        return f"it takes more than {BEGIN_LIMIT_S:g} s to begin; simplify it."
    half = len(times) // 2
    before_s, after_s = times[half] - times[min(1, half)], times[-1] - times[half]
    if after_s > max(_GROWTH_FROM_S, _GROWTH * before_s):
        return "each token takes longer than the one before; make it less ambiguous."
    return None


def _draw(guide: Guide, follow: Follow, tokens: int) -> list[float]:
    """Generate tokens; return the CPU time at the start and after each."""
    times = [_cpu_time_s()]
    follow(guide, tokens, lambda: times.append(_cpu_time_s()))
    return times


def _cpu_time_s() -> float:
    """Read the CPU time; `time.process_time` counts in ticks while an interval timer runs."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY_LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    is_installed = importlib.util.find_spec("xgrammar") is not None
    serve(
        lambda: _load(Path(sys.argv[1])) if is_installed else lambda *_: None,
        brackets_only=False,
    )


def _load(info_file: Path) -> Follow:
    return _Compiler(json.loads(info_file.read_text(encoding="utf-8")))


class _Compiler:
    """XGrammar's compiler on one thread; TensorRT-LLM uses eight.

    Args:
        info: the contents of INFO, see `write_tokenizer_info`.
    """

    def __init__(self, info: dict[str, Any]) -> None:
        import numpy as np
        import transformers
        import xgrammar
        from tokenizers import Tokenizer

        wrapper: Any = transformers.PreTrainedTokenizerFast
        backend = Tokenizer.from_str(info["tokenizer_str"])
        self._xgrammar = xgrammar
        self._vocabulary = xgrammar.TokenizerInfo.from_huggingface(
            wrapper(tokenizer_object=backend),
            vocab_size=len(info["encoded_vocab"]),
            stop_token_ids=info["stop_token_ids"],
        )
        self._compiler = xgrammar.GrammarCompiler(self._vocabulary, max_threads=1)
        vocabulary = self._vocabulary.decoded_vocab
        self._drawn = np.array([bool(token.strip()) for token in vocabulary])
        self._drawn[info["stop_token_ids"]] = False
        # XGrammar (0.1.32) caches the masks of rules that grammars share: 12 of the 20 ms of a
        # schema with a text. The engine's XGrammar does the same.
        grammar = convert_schema(_COMMON_SCHEMA, any_blanks=False).grammar
        self._common = self._compile(Guide("ebnf_grammar", grammar))

    def __call__(self, guide: Guide, tokens: int, on_token: Callable[[], None]) -> None:
        """Draw allowed tokens at random, except blank ones and stop tokens."""
        import numpy as np

        matcher = self._xgrammar.GrammarMatcher(self._compile(guide))
        bitmask = self._xgrammar.allocate_token_bitmask(1, len(self._drawn))
        chance = np.random.default_rng(0)
        for _ in range(tokens):
            matcher.fill_next_token_bitmask(bitmask)
            words = bitmask.numpy().view(np.uint8).ravel()
            bits = np.unpackbits(words, bitorder="little")[: len(self._drawn)]
            if not bits.any():
                raise RuntimeError(NOTHING_ALLOWED)
            (allowed,) = np.nonzero(bits & self._drawn)
            if not len(allowed) or not matcher.accept_token(int(chance.choice(allowed))):
                return
            on_token()

    def _compile(self, guide: Guide) -> Any:
        """Compile as `GuidedDecoder::build` in TensorRT-LLM does."""
        make = self._xgrammar.Grammar
        grammar = (make.from_regex if guide.language == "regex" else make.from_ebnf)(guide.text)
        return self._compiler.compile_grammar(grammar)


if __name__ == "__main__":
    main()
