"""The benchmark of files: its bound is the entropy, its tables are those of the page."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest
import torch

from feta_lab.records import read

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
# Not by its name alone, which is that of a room of feta too.
found = importlib.util.spec_from_file_location("benchmark_of_files", ROOT / "benchmarks" / "files.py")
files = importlib.util.module_from_spec(found)
sys.modules[found.name] = files
found.loader.exec_module(files)


def test_the_bound():
    tensor = torch.zeros(10, 100)
    tensor[:, :5], tensor[:, 5:10] = 1.0, 2.0  # a tenth is left, in two binades
    share = -0.1 * math.log2(0.1) - 0.9 * math.log2(0.9)
    assert files.bound(tensor) == pytest.approx((1000 * share + 100 * (24 + 1)) / 8)
    assert files.bound(torch.ones(7)) == 28
    assert files.bound(torch.zeros(4, 4)) == 0


def test_what_is_pruned_and_measured(tmp_path):
    convolutional = {"conv1.weight": torch.randn(4, 3, 3, 3), "conv2.weight": torch.randn(8, 4, 3, 3)}
    state = convolutional | {
        "fc.bias": torch.randn(5),
        "fc.weight": torch.randn(5, 80),
        "out.weight": torch.randn(3, 5),
    }
    zeros = {name: int((tensor == 0).sum()) for name, tensor in files.pruned(state, 0.75).items()}
    assert zeros == {"conv1.weight": 0, "conv2.weight": 216, "fc.bias": 0, "fc.weight": 300, "out.weight": 0}
    files.measure(tmp_path / "r.jsonl", "net", 0.75, "threshold", files.pruned(state, 0.75), 1)
    (one,) = read(tmp_path / "r.jsonl")
    assert one["config"] == {"net": "net", "sparsity": 0.75, "method": "threshold"}
    assert set(one["metrics"]["seconds"]) == set(files.KINDS)
    assert min(one["metrics"]["bytes"].values()) > 0
    assert "| net | threshold | 75 % |" in files.tables([one])
