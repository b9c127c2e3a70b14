"""Seconds of feta and ALPS on each network at 90 %, split by phase, one run at a time.

    python benchmarks/timing.py NETWORKS OUT.jsonl --device cuda

NETWORKS holds trained networks (python -m feta_lab.zoo NETWORKS). The first round warms the device up; the
second is the one to read. Phases are the times between the steps a solver reports.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from feta.engine.prune import prune
from feta.engine.settings import PruneEvent
from feta_lab import data as datasets
from feta_lab import store
from feta_lab.bench import floor_seconds
from feta_lab.networks import PRESETS
from feta_lab.zoo import network_path


class Phases:
    """A callback that notes how long each step took."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str, str, float]] = []
        self.last = time.perf_counter()

    def __call__(self, event: PruneEvent) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.noted.append((event.layer, event.kind, event.phase, round(now - self.last, 4)))
        self.last = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--nets", nargs="+", default=list(PRESETS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    with given.out.open("w") as out:
        for round_ in range(given.rounds):
            total = 0.0
            for net in given.nets:
                network = store.load(network_path(given.networks, net, 0))
                data = datasets.load(network.info.data)
                images = data.normalisation.apply(data.train.images, given.device)
                model = network.model.to(given.device)
                floor = floor_seconds(network, images, None, 0)
                for method in ("feta", "alps"):
                    phases = Phases()
                    report = prune(model, images, 0.9, method, device=given.device, callback=phases).report
                    line = {
                        "net": net,
                        "method": method,
                        "round": round_,
                        "seconds": report.seconds,
                        "floor": floor,
                    }
                    line["layers"] = [(layer.name, layer.seconds) for layer in report.layers]
                    out.write(json.dumps({**line, "phases": phases.noted}) + "\n")
                    total += report.seconds if method == "feta" else 0.0
            print(f"round {round_}: feta took {total:.2f} s over {len(given.nets)} networks", flush=True)


if __name__ == "__main__":
    main()
