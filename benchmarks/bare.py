"""Experiments on a machine that has torch, numpy, scipy and safetensors, and no libraries of the command line.

    PYTHONPATH=src python benchmarks/bare.py train networks=networks nets=dense-mnist,conv-mnist seeds=3 jobs=6
    PYTHONPATH=src python benchmarks/bare.py table1 nets=conv-mnist device=cuda networks=networks
    PYTHONPATH=src python benchmarks/bare.py bench nets=conv-cifar compensate=false,true jobs=9 out=results/methods

The first word is an experiment of feta_lab.experiments, or `train`. The others are settings of its plan, or
quick=true and config=FILE.
"""

import sys
from pathlib import Path

from feta.errors import FetaError
from feta_lab.experiments import EXPERIMENTS, run
from feta_lab.experiments.bench import Timing
from feta_lab.experiments.plan import load_plan


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(words: list[str]) -> int:
    if not words or any("=" not in word for word in words[1:]):
        tell(f"{__doc__}\nexperiments: train, {', '.join(EXPERIMENTS)}")
        return 2
    settings = dict(word.split("=", 1) for word in words[1:])
    try:
        if words[0] == "train":
            load_plan(Timing, None, {"seeds": 3, **settings}).train(tell)  # a plan that names every network
            return 0
        quick, config = settings.pop("quick", "false") == "true", settings.pop("config", None)
        done = run(words[0], quick=quick, config=Path(config) if config else None, tell=tell, **settings)
    except FetaError as error:
        tell(f"feta: {error}")
        return 1
    print(f"{done.table}\nrecords: {done.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
