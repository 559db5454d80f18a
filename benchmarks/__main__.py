"""`python -m benchmarks [CASE…]`: measures, prints, and writes what came out."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.cases import ALL, DEFAULT, case
from benchmarks.options import Options
from benchmarks.report import write_report
from trtllm_truss.cli.common import unwinding

_OUTPUT = Path(__file__).parent / "results"


def main() -> int:
    """The command; 1 when a case found a fault."""
    parser = _parser()
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.cases if name not in ALL]:
        parser.error(f"no case is called {', '.join(unknown)}; there are {', '.join(ALL)}")
    output: Path = chosen.output
    output.mkdir(parents=True, exist_ok=True)
    (output / ".gitignore").write_text("*\n")
    options = Options(
        work=output / "work",
        streams=chosen.streams,
        rounds=chosen.rounds,
        seconds=chosen.seconds,
        requests=chosen.requests,
        readers=chosen.readers,
        minutes=chosen.minutes,
        seed=chosen.seed,
        native_model=chosen.native_model,
    )
    begun = time.monotonic()
    faults = 0
    with unwinding():
        for name in () if chosen.no_run else chosen.cases or DEFAULT:
            result = case(name)(options.quickened() if chosen.quick else options)
            result.write(output)
            faults += len(result.faults)
    print(f"\nmeasured in {time.monotonic() - begun:.0f} s; JSON in {output}")
    if chosen.docs is not None:
        print(f"written: {write_report(output, chosen.docs)}")
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"{', '.join(ALL)} (default: the first three)"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works")
    parser.add_argument("--streams", type=_numbers, metavar="N,…", help="requests at once")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, metavar="S", help="of one measurement")
    parser.add_argument("--requests", type=int, metavar="N", help="of endurance (default: 10000)")
    parser.add_argument("--readers", type=int, metavar="N", help="slow ones (default: 1000)")
    parser.add_argument("--minutes", type=float, metavar="N", help="of chaos (default: 10)")
    parser.add_argument("--seed", type=int, metavar="N", help="of chaos (default: any)")
    parser.add_argument(
        "--native-model",
        default="ensemble",
        metavar="NAME",
        help="whose generate_stream is Triton's own path (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, default=_OUTPUT, metavar="DIR", help="for JSON")
    parser.add_argument(
        "--docs", type=Path, metavar="DIR", help="write performance.md and plots/ of all JSON there"
    )
    parser.add_argument("--no-run", action="store_true", help="only write --docs")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
