"""Pruning in haste: the mask and, given steps enough, the exact fit on it, by definition."""

import copy

import pytest
import torch
from torch import nn

from feta.allocation import measure as haste
from feta.allocation.measure import HastyLayer
from feta.calibration.stream import TensorStream
from feta.sparsity import top_k_mask
from nets import plain_frames

ROWS = 300


def linear(*, bias: bool = True, outputs: int = 5) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(8, outputs, bias=bias).double()


def rows(seed: int = 1, d_in: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(ROWS, d_in, generator=generator, dtype=torch.float64)
    return A @ torch.randn(d_in, d_in, generator=generator, dtype=torch.float64) + 3


def stream(A: torch.Tensor, d_out: int = 5) -> TensorStream:
    return TensorStream(A, A.new_zeros(len(A), d_out), 100)


def pruned(layer: nn.Linear, A: torch.Tensor, count: int) -> nn.Linear:
    copied = copy.deepcopy(layer)
    HastyLayer.of(plain_frames(layer, ""), (stream(A, layer.out_features),)).write_(plain_frames(copied, ""), count)
    return copied


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [0, 7, 23, 40])
def test_mask_and_fit_by_definition(monkeypatch, bias, count):
    monkeypatch.setattr(haste, "ITERATIONS", 60)
    layer, A = linear(bias=bias), rows()
    found = pruned(layer, A, count)
    W = layer.weight.detach().t()
    centred = A - A.mean(0) if bias else A
    mask = top_k_mask(W.abs() * centred.norm(dim=0)[:, None], count)
    H = centred.t() @ centred
    H = H + haste.RIDGE * H.diagonal().mean() * torch.eye(8, dtype=torch.float64)
    expected = torch.zeros_like(W)
    for j in range(5):
        S = mask[:, j].nonzero()[:, 0]
        expected[S, j] = torch.linalg.solve(H[S][:, S], (H @ W)[S, j])
    torch.testing.assert_close(found.weight.detach().t(), expected)
    assert torch.equal(found.weight.t() != 0, mask)
    if bias:  # the mean of every output stays
        torch.testing.assert_close(found(A).mean(0), layer(A).mean(0))


def test_a_few_steps_do_better_than_thresholding_and_worse_than_more(monkeypatch):
    layer, A = linear(outputs=40), rows()
    errors = []
    for steps in (0, haste.ITERATIONS, 60):
        monkeypatch.setattr(haste, "ITERATIONS", steps)
        errors.append((pruned(layer, A, 100)(A) - layer(A)).square().sum().item())
    assert errors[0] > errors[1] >= errors[2] * (1 - 1e-2)


def test_groups_share_one_threshold(monkeypatch):
    monkeypatch.setattr(haste, "ITERATIONS", 0)
    torch.manual_seed(0)
    conv, other = (nn.Conv2d(4, 6, 3, groups=2) for _ in range(2))
    with torch.no_grad():
        conv.weight[:3] *= 0.1
    generator = torch.Generator().manual_seed(0)
    parts = tuple(stream(torch.randn(50, 18, generator=generator), 3) for _ in range(2))
    HastyLayer.of(plain_frames(conv, ""), parts).write_(plain_frames(other, ""), 30)
    assert int((other.weight != 0).sum()) == 30
    assert int((other.weight[:3] != 0).sum()) < 5  # the quiet group gives way


def test_dead_and_constant_inputs_come_last():
    layer, A = linear(), rows()
    A[:, 2], A[:, 5] = 0, 4
    found = pruned(layer, A, 30)
    assert not found.weight[:, [2, 5]].any()
    assert bool(torch.isfinite(found.weight).all())
    torch.testing.assert_close(found(A).mean(0), layer(A).mean(0))
