"""Memory does not grow with the number of samples, unless the caller asks for rows in memory.

Measured in a process of its own, by the system's high-water mark: torch's memory is invisible to
tracemalloc. The data set makes its batches when they are read, so that it takes no memory itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WIDTH, BATCH, FEW, MANY = 64, 4000, 4, 40
MEGABYTE = 2**20
MORE_DATA = (MANY - FEW) * BATCH * WIDTH * 4 / MEGABYTE  # of one layer's inputs

SCRIPT = """
import json, sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

import feta

torch.set_num_threads(1)
width, batch, few, many = map(int, sys.argv[1:])


class Made:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        for i in range(self.n):
            yield torch.full((batch, width), 1 + i / self.n)


def peak():
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def pruner(kind):
    @dataclass(frozen=True)
    class Reads:
        name: ClassVar[str] = "reads"
        passes: ClassVar[str] = kind

        def prune(self, problem, target):
            rows = problem.rows
            assert sum(float(A.sum()) + float(B.sum()) for A, B in rows.chunks())
            assert sum(float(A.sum()) for A in rows.inputs())
            thin = rows.thinned(max(1, rows.n_rows // 1000))
            assert sum(float(A.sum()) for A, _ in thin.chunks())
            return feta.Threshold().prune(problem, target)

    return Reads()


model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
grown = {}
for name, method, options in (
    ("replay", pruner("few"), {"compensate": True}),
    ("disk", pruner("many"), {}),
    ("one-shot", pruner("few"), {"one_shot": True}),
    ("memory", pruner("many"), {"cache": "memory"}),
):
    one_shot = options.pop("one_shot", False)
    peaks = []
    for n in (few, few, many):  # the first run also pays for what torch loads on first use
        data = Made(n)
        feta.prune(model, iter(data) if one_shot else data, 0.5, method, **options)
        peaks.append(peak())
    grown[name] = peaks[2] - peaks[1]
print(json.dumps(grown))
"""


@pytest.fixture(scope="module")
def grown() -> dict[str, float]:
    """Megabytes by which the peak grows from few to ten times as many samples, per way of keeping rows."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc to read a process's peak memory")
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, (WIDTH, BATCH, FEW, MANY))],
        capture_output=True,
        text=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},  # freed batches go back to the system at once
    )
    assert answer.returncode == 0, answer.stderr
    found: dict[str, float] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize("way", ["replay", "disk", "one-shot"])
def test_ten_times_the_samples_take_no_more_memory(grown, way):
    assert grown[way] < 0.15 * MORE_DATA


def test_rows_in_memory_do_grow_so_the_measure_can_see_it(grown):
    assert grown["memory"] > MORE_DATA
