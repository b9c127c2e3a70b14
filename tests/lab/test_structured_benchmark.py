"""The benchmark of smaller networks: rivals lose their lowest scores, and the page shows the records."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("torch_pruning", reason="needs torch-pruning, pip install torch-pruning")

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from feta_lab.records import read  # noqa: E402
from nets import mlp  # noqa: E402
from structured import Subject as Network  # noqa: E402
from structured import groups_of, lowest, multiply_adds, rest, scores_of  # noqa: E402

ROWS = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))


def subject():
    labels = torch.arange(40) % 3
    return Network(mlp(6, 20, 12, 3), ROWS, labels, (ROWS, labels), "noise")


@pytest.mark.parametrize("spread", ["uniform", "global"])
@pytest.mark.parametrize("choice", ["magnitude", "taylor"])
def test_the_lowest_scores_go_until_the_target_is_met(choice, spread):
    given = subject()
    groups, widths = groups_of(given.model, given.images)
    scores = scores_of(choice, given, groups)
    gone = lowest(scores, widths, 0.5, spread)
    left = widths.multiply_adds({root: len(units) for root, units in gone.items()})
    assert 0.4 * 396 < left <= 0.5 * 396
    for group in groups:
        stays = rest(group, gone[group.root])
        if len(gone[group.root]):
            assert scores[group.root][gone[group.root]].max() <= scores[group.root][stays].min()


def test_magnitude_is_the_norm_over_both_layers():
    given = subject()
    groups, _ = groups_of(given.model, given.images)
    found = scores_of("magnitude", given, groups)["fc1"]
    norms = given.model.fc1.weight.square().sum(1) + given.model.fc2.weight.square().sum(0)
    assert torch.allclose(found / found.sum(), (norms / norms.sum()).detach(), atol=1e-6)


def test_multiply_adds_are_counted_in_the_network():
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.Flatten(), nn.Linear(64, 5))
    assert multiply_adds(model, torch.randn(1, 2, 4, 4)) == 16 * 4 * 9 + 64 * 5


def test_all_choices_of_a_cell_have_about_the_same_multiply_adds():
    for record in read(ROOT / "results" / "structured" / "records.jsonl"):
        assert 0 <= record["removed"] - record["share"] <= 0.011
