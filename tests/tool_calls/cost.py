"""CPU time of reading a megabyte of output in every format, whole and in chunks of 16 characters.

    python -m tests.tool_calls.cost [--kib 1024] [--rounds 3] [--formats hermes harmony]

Prints seconds per MiB, the least of all rounds, for the written outputs one after another
(`calls`), the first of them again and again (`one call`), prose, one long argument, and nothing but
a marker of calls. Two sizes (`--kib`) show whether time is linear. Other load on the machine adds
to the figures.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.tool_calls.fuzz import REASONING
from tests.tool_calls.outputs.notation import TOOLS
from tests.tool_calls.parsing import FORMATS, cases
from tests.tool_calls.test_hostile import BEGINNINGS

from trtllm_truss.tool_calls.catalog import REASONING_FORMATS, TOOL_FORMATS
from trtllm_truss.tool_calls.parser import OutputParser

_TOKEN = 16


def texts(name: str, length: int) -> dict[str, str]:
    """The outputs of one format by their kinds."""
    units = {
        "calls": "".join(f"{case.output}\n" for case in cases(name)),
        "one call": f"{cases(name)[0].output}\n",
        "prose": "Some words < of [text] {here}. ",
        "argument": "0123456789 abcdef < ",
        "markers": f"{min(TOOL_FORMATS[name].signs)} ",
    }
    begin = {"argument": f'{BEGINNINGS[name]}"'}
    return {
        kind: (begin.get(kind, "") + unit * (length // len(unit) + 1))[:length]
        for kind, unit in units.items()
    }


def cost_s(name: str, text: str, step: int) -> float:
    """Read a text in chunks and return the CPU time, in seconds."""
    reasoning = REASONING_FORMATS[REASONING.get(name, ["qwen3"])[0]]
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    begun = time.process_time()
    parser = OutputParser(TOOL_FORMATS[name], reasoning, TOOLS)
    for piece in pieces:
        parser.feed(piece)
    parser.finish()
    return time.process_time() - begun


def main() -> None:
    options = argparse.ArgumentParser(description="Measure the parsers of tool calls.")
    options.add_argument("--kib", type=int, default=1024)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--formats", nargs="+", default=FORMATS)
    given = options.parse_args()
    length = given.kib << 10
    for name in given.formats:
        for kind, text in texts(name, length).items():
            whole, pieces = (
                1024 / given.kib * min(cost_s(name, text, step) for _ in range(given.rounds))
                for step in (length, _TOKEN)
            )
            sys.stdout.write(f"{name:13} {kind:9} {whole:6.2f} s whole {pieces:6.2f} s in pieces\n")


if __name__ == "__main__":
    main()
