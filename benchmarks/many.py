"""Accuracy of every method on many networks at once, one process per network; timed runs are `feta bench`.

    python benchmarks/many.py NETWORKS OUT --nets dense-mnist conv-cifar --sparsity 0.9 0.95 0.98

Runs with torch, numpy, scipy and safetensors alone (PYTHONPATH=src), so that a bare GPU machine can do it.
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from feta.pruners import METHODS
from feta_lab.bench import Bench, run_bench
from feta_lab.networks import PRESETS


def one_network(bench: Bench, records: Path) -> int:
    torch.set_num_threads(1)
    return len(run_bench(bench, records))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--nets", nargs="+", default=list(PRESETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--sparsity", nargs="+", type=float, default=[0.8, 0.9, 0.95, 0.98])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--compensate", choices=("on", "off", "both"), default="both")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=9)
    given = parser.parse_args()
    compensate = {"on": (True,), "off": (False,), "both": (False, True)}[given.compensate]
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {}
        for net in given.nets:
            bench = Bench(
                (net,), tuple(given.methods), tuple(given.sparsity), given.seeds, compensate,
                device=given.device, networks=given.networks, timed=False,
            )  # fmt: skip
            waiting[pool.submit(one_network, bench, given.out / f"{net}.jsonl")] = net
        for done in as_completed(waiting):
            print(waiting[done], done.result(), "cells", flush=True)


if __name__ == "__main__":
    main()
