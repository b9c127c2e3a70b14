"""A model that is too large for the device is walked with one segment on it at a time."""

import pytest
import torch
from torch import nn

import feta
from feta.engine import run as run_module
from nets import mlp

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))


class Deep(nn.Module):
    """A stem, blocks with a batch-norm and a shortcut, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(3)
        )

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@pytest.mark.parametrize("method", ["threshold", "alps", "feta"])
@pytest.mark.parametrize("model", [lambda: mlp(6, 7, 8, 3), Deep], ids=["chain", "sums"])
def test_the_result_is_that_of_a_model_that_fits(monkeypatch, method, model):
    torch.manual_seed(0)
    net = model().eval()
    options = {"options": {"weigh_outputs": False}} if method == "feta" else {}  # that takes the whole network
    expected = feta.prune(net, X, 0.5, method, layers="*", **options)
    seen = []

    def refused(model, device):
        seen.append(device)
        return False

    monkeypatch.setattr(run_module, "fits", refused)
    found = feta.prune(net, X, 0.5, method, layers="*", device="cpu:0", **options)  # another device by its name
    assert seen == [torch.device("cpu:0")]
    for (name, one), other in zip(
        found.model.state_dict().items(), expected.model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(one, other, msg=name)
    assert [layer.status for layer in found.report.layers] == [layer.status for layer in expected.report.layers]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_of_the_device_is_that_of_a_segment(monkeypatch):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(12)]
    net, data = nn.Sequential(*blocks, nn.Linear(1024, 4)), torch.randn(200, 1024)
    expected = feta.prune(net, data, 0.5, "wanda", device="cuda")
    monkeypatch.setattr(run_module, "fits", lambda model, device: False)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = feta.prune(net, data, 0.5, "wanda", device="cuda")
    both = 2 * 12 * 1024**2 * 4  # bytes of the two networks
    assert torch.cuda.max_memory_allocated() - before < 0.6 * both
    assert all(torch.equal(found.masks[name], mask) for name, mask in expected.masks.items())
