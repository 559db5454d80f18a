"""`python -m benchmarks [CASE…]`: measure, print and write the results."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.cases import ALL, DEFAULT, MEASURED, case
from benchmarks.options import Options
from benchmarks.report import write_report
from trtllm_truss.cli.common import unwinding

_OUTPUT = Path(__file__).parent / "results"


def main() -> int:
    """Run the command; return 1 if a case found a fault."""
    parser = _parser()
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.cases if name not in ALL]:
        parser.error(f"unknown case {', '.join(unknown)}; choose from {', '.join(ALL)}")
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
        megabytes=chosen.megabytes,
        minutes=chosen.minutes,
        seed=chosen.seed,
        bodies=chosen.bodies,
        server=chosen.server,
        native_model=chosen.native_model,
    )
    start = time.monotonic()
    faults = 0
    names = () if chosen.no_run else chosen.cases or DEFAULT
    with unwinding():
        for name in names:
            result = case(name)(options.quickened() if chosen.quick else options)
            result.write(output, chosen.label)
            faults += len(result.faults)
    print(f"\nmeasured in {time.monotonic() - start:.0f} s; JSON in {output}")
    if chosen.docs is not None:
        print(f"written: {write_report(output, chosen.docs, names or MEASURED)}")
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"{', '.join(ALL)} (default: the first four)"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, for a smoke test")
    parser.add_argument("--streams", type=_numbers, metavar="N,…", help="concurrent requests")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, metavar="S", help="duration of one measurement")
    parser.add_argument(
        "--requests", type=int, metavar="N", help="requests of endurance (default: 10000)"
    )
    parser.add_argument("--readers", type=int, metavar="N", help="slow readers (default: 1000)")
    parser.add_argument(
        "--megabytes", type=int, metavar="N", help="MiB of download (default: 2048)"
    )
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="duration of chaos (default: 10) or soak (30)"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed of chaos and soak (default: random)"
    )
    parser.add_argument(
        "--bodies", default="", metavar="TEXT", help="only hostile bodies with TEXT in their names"
    )
    parser.add_argument(
        "--server",
        choices=("truss", "own"),
        default="truss",
        help="server of hostile; own is filed as hostile@own.json (default: %(default)s)",
    )
    parser.add_argument(
        "--native-model",
        default="ensemble",
        metavar="NAME",
        help="model of Triton's own generate_stream (default: %(default)s)",
    )
    parser.add_argument(
        "--label",
        default="",
        metavar="NAME",
        help="file as CASE@NAME.json, which the page leaves out",
    )
    parser.add_argument(
        "--output", type=Path, default=_OUTPUT, metavar="DIR", help="folder for JSON"
    )
    parser.add_argument(
        "--docs",
        type=Path,
        metavar="DIR",
        help="update the sections of these cases in performance.md and plots/ there",
    )
    parser.add_argument("--no-run", action="store_true", help="only update --docs, from every JSON")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
