"""Run every kind of soak that this folder holds: python -m soak [--only KIND] [--share 0.01] [--seed 0]."""

import argparse
import importlib
import pkgutil
import sys
import time

import soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--only", action="append", help="one kind alone; may be given again")
    parser.add_argument("--share", type=float, default=1.0, help="of the full counts")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    modules = {name: importlib.import_module(f"soak.{name}") for name in kinds()}
    wrong = 0
    for name, module in modules.items():
        if given.only and name not in given.only:
            continue
        started = time.monotonic()
        tally = module.run(max(1, round(module.COUNT * given.share)), given.seed)
        print(f"{tally} ({time.monotonic() - started:.0f} s)", flush=True)
        wrong += len(tally.wrong)
    return int(wrong > 0)


def kinds() -> list[str]:
    """The modules that are kinds: each has `run(count, seed)` and COUNT, its full count."""
    names = sorted(module.name for module in pkgutil.iter_modules(soak.__path__) if module.name[0] != "_")
    return [name for name in names if hasattr(importlib.import_module(f"soak.{name}"), "run")]


if __name__ == "__main__":
    sys.exit(main())
