"""A GPU finds what a CPU finds: the same weights survive, and the network says the same."""

import pytest
import torch
from torch import nn

import feta

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # torch's first backward in a process
]


@pytest.fixture(scope="module")
def subject() -> tuple[nn.Module, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(64, 64, generator=generator) * torch.linspace(1, 0.05, 64)[:, None]
    rows = torch.randn(3000, 64, generator=generator) @ mixing
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10)), rows


@pytest.mark.parametrize("method", ["threshold", "wanda", "sparsegpt", "exact-obs", "lobs", "alps", "feta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_weights_survive(subject, method, dtype):
    model, rows = subject[0].to(dtype), subject[1].to(dtype)
    found = {
        device: feta.prune(model, rows, 0.8, method, compensate=True, device=device) for device in ("cpu", "cuda")
    }
    for name, mask in found["cpu"].masks.items():
        same = (mask == found["cuda"].masks[name].cpu()).float().mean()
        # Iterations in another order of summation settle near ties otherwise, the more so in random weights.
        assert same >= (0.9 if method in ("lobs", "alps", "feta") else 0.98), (name, float(same))
    with torch.no_grad():
        truth = model(rows)
        errors = [float((result.model.cpu()(rows) - truth).norm() / truth.norm()) for result in found.values()]
    assert errors[0] == pytest.approx(errors[1], rel=0.03 if method in ("lobs", "alps", "feta") else 0.01)
