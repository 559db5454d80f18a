"""Compare, or with `--write` rewrite, the kept data."""

from __future__ import annotations

import argparse
import sys

from tests.frozen.records import REMEDY, SOURCES, differences, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.frozen", description=__doc__)
    parser.add_argument("--write", action="store_true", help="rewrite tests/frozen/data")
    if parser.parse_args().write:
        write()
        return 0
    found = [text for source in SOURCES.values() if (text := differences(source()))]
    if found:
        sys.stdout.write("\n".join([*found, REMEDY, ""]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
