"""feta reproduce for machines without the command line's libraries.

python -m feta_lab.reproduce table1 --nets conv-mnist,conv-fashion --device cuda --networks networks
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from feta.errors import FetaError
from feta_lab.reproduce import EXPERIMENTS, reproduce


def parser() -> argparse.ArgumentParser:
    """Every option that any experiment has; one that an experiment lacks is refused by its plan."""
    parser = argparse.ArgumentParser(prog="python -m feta_lab.reproduce", description=__doc__)
    parser.add_argument("experiment", choices=sorted(EXPERIMENTS))
    parser.add_argument("--config", type=Path, help="TOML file; options override it")
    parser.add_argument("--quick", action="store_true", help="the same path on embedded data, small")
    for name in ("nets", "methods", "sparsity", "components"):
        parser.add_argument(f"--{name}", help="separated by commas")
    for name in ("seeds", "samples", "epochs", "batch-size", "jobs"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--cell-budget", type=float, help="seconds after which a cell is stopped")
    for name in ("device", "data"):
        parser.add_argument(f"--{name}")
    for name in ("data-dir", "networks", "keep", "out"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--resume", action=argparse.BooleanOptionalAction)
    return parser


def tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    given = vars(parser().parse_args())
    try:
        done = reproduce(given.pop("experiment"), tell=tell, **given)
    except FetaError as error:
        sys.stderr.write(f"feta: {error}\n")
        return 1
    sys.stdout.write(f"{done.table}\nrecords: {done.path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
