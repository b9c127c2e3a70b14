"""Memory does not grow with the number of samples beyond Settings.memory, unless the caller asks for rows in memory.

Measured in a process of its own, by the system's high-water mark: torch's memory is invisible to
tracemalloc. The data set makes its batches when they are read, so that it takes no memory itself.
"""

import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import feta

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
from feta import Needs
from feta.pruners import Threshold

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
        needs: ClassVar[Needs] = Needs(kind)

        def prune(self, problem, target):
            rows = problem.rows
            assert sum(float(A.sum()) + float(B.sum()) for A, B in rows.chunks())
            assert sum(float(A.sum()) for A in rows.inputs())
            assert sum(float(A.sum()) for A, _ in rows.sampled(1000).chunks())
            return Threshold().prune(problem, target)

    return Reads()


model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
grown = {}
for name, method, options in (
    ("replay", pruner("few"), {"compensate": True, "settings": feta.Settings(cache="replay")}),
    ("disk", pruner("many"), {"settings": feta.Settings(cache="disk")}),
    ("one-shot", pruner("few"), {"one_shot": True, "settings": feta.Settings(cache="replay")}),
    ("auto", pruner("few"), {"settings": feta.Settings(memory=0)}),
    ("auto, many passes", pruner("many"), {"settings": feta.Settings(memory=1 / 1024)}),
    ("memory", pruner("many"), {"settings": feta.Settings(cache="memory")}),
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


@pytest.mark.parametrize("way", ["replay", "disk", "one-shot", "auto", "auto, many passes"])
def test_ten_times_the_samples_take_no_more_memory(grown, way):
    assert grown[way] < 0.15 * MORE_DATA


def test_rows_in_memory_do_grow_so_the_measure_can_see_it(grown):
    assert grown["memory"] > MORE_DATA


LIMITED = """
import sys
from pathlib import Path

import torch
from torch import nn

import feta

torch.set_num_threads(1)
width, batches, limit = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


class Made:
    def __init__(self, count, width):
        self.count, self.width = count, width

    def __iter__(self):
        for seed in range(self.count):
            yield torch.randn(1000, self.width, generator=torch.Generator().manual_seed(seed))


def network(width):
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2)), nn.Linear(width, 4))


def peak():
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


feta.prune(network(8), Made(1, 8), 0.5, "feta")  # what torch loads on first use
before = peak()
feta.prune(network(width), Made(batches, width), 0.9, "feta", settings=feta.Settings(memory=limit))
print(peak() - before)
"""


def test_a_run_keeps_to_its_limit():
    """Samples, states and rows of 80 MB each would take twice as much; a tenth is left to the allocator."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc to read a process's peak memory")
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIMITED, "512", "40", "256MiB"],
        capture_output=True,
        text=True,
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    assert answer.returncode == 0, answer.stderr
    networks = 2 * 4 * 2 * 512**2 / MEGABYTE
    assert float(answer.stdout) < 1.1 * 256 + networks


class Peak(TorchDispatchMode):
    """The most bytes that tensors made inside have held at once."""

    def __init__(self):
        super().__init__()
        self.live, self.now, self.peak = set(), 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if size and key not in self.live:
                    self.live.add(key)
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._drop, key, size)
        return result

    def _drop(self, key, size):
        self.live.discard(key)
        self.now -= size


@pytest.mark.filterwarnings(
    "ignore::feta.engine.finish.PruneWarning"
)  # few samples of noise: the fit is not the point here
@pytest.mark.parametrize(("d_in", "d_out"), [(512, 64), (1024, 64)])
def test_the_gram_solver_keeps_to_its_memory(d_in, d_out):
    """5 d_in^2 + 6 d_in d_out values of 4 bytes beyond two models and the chunks at hand, with 2 d_in held rows."""
    batch = 250

    def batches():
        for seed in range(12):
            yield torch.randn(batch, d_in, generator=torch.Generator().manual_seed(seed)).clamp_min_(0)

    class Rows:
        def __iter__(self):
            return batches()

    model = torch.nn.Sequential(torch.nn.Linear(d_in, d_out), torch.nn.ReLU(), torch.nn.Linear(d_out, 4))
    with Peak() as memory:
        how = feta.Settings(cache="replay", batch_size=batch)
        feta.prune(model, Rows(), 0.9, "feta", options={"sample": 2 * d_in}, settings=how)
    # A batch as it is read, the part of it that is fitted, on the device, for both networks, and its rows.
    models, chunks = 2 * d_in * d_out, 6 * batch * (d_in + d_out)
    assert memory.peak / 4 - models - chunks < 5 * d_in**2 + 6 * d_in * d_out
