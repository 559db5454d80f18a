"""Mutated outputs of every format, read by its parser.

    python -m tests.tool_calls.fuzz --minutes 10 [--seed 1] [--formats hermes harmony]

Whatever a model writes: no exception, the same parts however it is cut, no control word in the
text, and arguments of whole calls that are JSON objects. Prints the first outputs that break this,
and the slowest ones.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from itertools import count

from tests.tool_calls.outputs.notation import TOOLS
from tests.tool_calls.parsing import FORMATS, cases, merge, parts

from trtllm_truss.tool_calls.catalog import REASONING_FORMATS, TOOL_FORMATS
from trtllm_truss.tool_calls.events import CallEnded, Event, ParsedText
from trtllm_truss.tool_calls.parser import OutputParser

REASONING = {
    "harmony": ["harmony"],
    "gemma4": ["gemma4"],
    "kimi_k3": ["kimi_k3"],
    "inkling": ["inkling"],
    "command_r7b": ["command_r7b"],
    "apertus": ["apertus"],
    "apriel": ["apriel"],
    "hunyuan": ["hunyuan"],
    "granite": ["granite", "qwen3"],
    "mistral": ["mistral"],
    "minimax_m3": ["minimax_m3"],
}
"""The reasoning formats that belong to call formats; `qwen3` for the others."""

_SYNTAX = [*'{}[]()<>",:=\\/', "'", '"""', "```", "\n", " ", "null", "true", "1e9", "\\u12", "é😀"]


def fragments(name: str) -> list[str]:
    """The words of a format, and the parts of its calls."""
    form = TOOL_FORMATS[name]
    words = sorted({*form.dropped, *form.special_tokens, *form.signs})
    words += [word for each in REASONING.get(name, ["qwen3"]) for word in _reasoning_words(each)]
    return [*words, *_SYNTAX, "get_time", "get_weather", "rm_rf", "city", "text ", "</think>"]


def _reasoning_words(name: str) -> list[str]:
    form = REASONING_FORMATS[name]
    wrappers = [word for pair in form.wrappers for word in pair if word]
    return sorted({*form.starts, *form.ends, *form.dropped, *wrappers})


def mutated(texts: list[str], words: list[str], randomness: random.Random) -> str:
    """An output, changed in a few places."""
    text = randomness.choice(texts)
    for _ in range(randomness.randint(1, 6)):
        begin = randomness.randint(0, len(text))
        end = min(len(text), begin + randomness.choice([0, 1, 2, 5, 20, 100]))
        other = randomness.choice(texts)
        cut = randomness.randint(0, len(other))
        text = randomness.choice(
            [
                text[:begin] + text[end:],
                text[:begin] + randomness.choice(words) + text[begin:],
                text[:begin] + randomness.choice(words) + text[end:],
                text[:begin] + text[begin:end] * 2 + text[end:],
                text[:begin],
                text + other,
                text[:begin] + other[cut:],
                other[:cut] + text[begin:],
                text[:begin] + other + text[begin:],
            ]
        )
    return text[:4000]


def read(name: str, reasoning: str | None, pieces: list[str], *, is_cut: bool) -> list[Event]:
    form = REASONING_FORMATS[reasoning] if reasoning else None
    parser = OutputParser(TOOL_FORMATS[name], form, TOOLS)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return merge([*events, *parser.finish(is_cut=is_cut)])


def check(name: str, reasoning: str | None, output: str, randomness: random.Random) -> None:
    """Read an output whole and in chunks.

    Raises:
        AssertionError: a rule is broken.
    """
    is_cut = randomness.random() < 0.5
    events = read(name, reasoning, [output], is_cut=is_cut)
    size = randomness.randint(1, 11)
    pieces = [output[at : at + size] for at in range(0, len(output), size)]
    assert read(name, reasoning, pieces, is_cut=is_cut) == events, f"pieces of {size}"
    text = "".join(event.text for event in events if isinstance(event, ParsedText))
    dropped = set(TOOL_FORMATS[name].dropped)
    dropped |= REASONING_FORMATS[reasoning].dropped if reasoning else set()
    leaked = [word for word in dropped if word in text]
    assert not leaked, f"text holds {leaked}: {text!r}"
    parts(events)  # whole calls have objects as arguments
    assert all(isinstance(event.index, int) for event in events if isinstance(event, CallEnded))


def outputs(name: str, randomness: random.Random) -> Iterator[tuple[str | None, str]]:
    """Formats of reasoning and mutated outputs, without end."""
    texts, words = [case.output for case in cases(name)], fragments(name)
    formats = [None, *REASONING.get(name, ["qwen3"])]
    if name == "harmony":
        formats = ["harmony"]
    for _ in count():
        reasoning = randomness.choice(formats)
        output = mutated(texts, words, randomness)
        if reasoning and reasoning != "harmony" and randomness.random() < 0.7:
            form = REASONING_FORMATS[reasoning]
            thoughts = randomness.choice(["Hm.", "", mutated(texts, words, randomness)[:200]])
            end = randomness.choice([*form.ends, *form.ends, ""])
            output = f"{randomness.choice(form.starts)}{thoughts}{end}{output}"
        yield reasoning, output


def main() -> int:
    write = sys.stdout.write
    options = argparse.ArgumentParser(description="Read mutated outputs of every format.")
    options.add_argument("--minutes", type=float, default=10)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--formats", nargs="+", default=FORMATS)
    given = options.parse_args()
    streams = {name: random.Random(f"{name} {given.seed}") for name in given.formats}
    made = {name: outputs(name, randomness) for name, randomness in streams.items()}
    deadline, read_count, failures = time.monotonic() + 60 * given.minutes, 0, 0
    slowest: list[tuple[float, str, str]] = []
    while time.monotonic() < deadline and failures < 10:
        for name, randomness in streams.items():
            reasoning, output = next(made[name])
            begun = time.perf_counter()
            try:
                check(name, reasoning, output, randomness)
            except Exception as failure:  # noqa: BLE001 - any is a finding
                failures += 1
                write(f"{name}, {reasoning}: {failure!r}\n  {json.dumps(output)}\n")
            took_s = (time.perf_counter() - begun) / (200 + len(output))
            slowest = sorted([*slowest, (took_s, name, output)])[-3:]
            read_count += 1
    write(f"{read_count} outputs of {len(streams)} formats read, {failures} failures\n")
    for took_s, name, output in slowest:
        write(f"  {took_s * 1e6:.1f} µs a character: {name}, {len(output)} characters\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
