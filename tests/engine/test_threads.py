"""Several threads work on one model at once: same results as alone, and the model is as it was."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import feta

ROWS = torch.randn(120, 8, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    """In training mode, with what tells whether it was run so: batch-norm statistics and dropout."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 16), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def hooks(model: nn.Module) -> int:
    return sum(len(v) for m in model.modules() for k, v in vars(m).items() if k.endswith("_hooks") and v is not None)


def chained() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


SHORT = feta.Refinement(20, learning_rate=1e-3)
TASKS = {
    "prune": lambda model: feta.prune(model, ROWS, 0.7, "feta").model.state_dict(),
    "allocated": lambda model: feta.prune(model, ROWS, 0.7, effort="fast").model.state_dict(),
    "refined": lambda model: feta.prune(model, ROWS, 0.7, "alps", refine=SHORT).model.state_dict(),
    "refine": lambda model: feta.refine(THIN, model, ROWS, steps=20, learning_rate=1e-3).model.state_dict(),
    "certify": lambda model: feta.certify(model, model, ROWS[:8], samples=4, attack=None).to_dict(),
}
THIN = feta.prune(network(), ROWS, 0.7, "threshold").model


@pytest.mark.parametrize("task", TASKS)
def test_eight_threads_on_one_model(task):
    model = chained() if task == "certify" else network()
    model.train()
    before, expected = {name: t.clone() for name, t in model.state_dict().items()}, TASKS[task](model)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: TASKS[task](model), range(8)))
    for result in found:
        for name, value in expected.items():
            assert torch.equal(result[name], value) if isinstance(value, torch.Tensor) else result[name] == value
    assert hooks(model) == 0
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
