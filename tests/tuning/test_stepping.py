"""A step, its recording on a GPU, and what surrounds it."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import feta
from feta.calibration.model import outputs_of, place
from feta.errors import ModelError
from feta.tuning.stepping import GraphedStep, Update, recordable, set_rate, threads_for


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def test_a_step_is_the_optimisers_and_tells_the_loss_before():
    model = build()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    expected = copy.deepcopy(model)
    loss = F.cross_entropy(expected(X), Y)
    gradients = torch.autograd.grad(loss, list(expected.parameters()))
    found = Update(model, optimiser, F.cross_entropy)(X, Y)
    assert not found.requires_grad
    assert found == loss.detach()
    for new, old, gradient in zip(model.parameters(), expected.parameters(), gradients, strict=True):
        assert torch.allclose(new, old - 0.1 * gradient)


class Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (build(), True),
        (nn.Sequential(build(), nn.BatchNorm1d(3), nn.Dropout()), True),
        (nn.Sequential(build(), Own()), False),
        (nn.BatchNorm1d(3, momentum=None), False),
        (torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), False),
    ],
)
def test_only_torchs_own_modules_are_recorded(model, expected):
    assert recordable(model) is expected


def test_a_hook_may_do_anything():
    model = build()
    handle = model[0].register_forward_hook(lambda *_: None)
    assert not recordable(model)
    handle.remove()
    assert recordable(model)


def test_rates_as_numbers_and_as_tensors():
    model = build()
    for rate in (0.1, torch.tensor(0.1)):
        groups = [{"params": layer.parameters()} for layer in (model[0], model[2])]
        optimiser = torch.optim.SGD(groups, rate, foreach=False)
        held = [group["lr"] for group in optimiser.param_groups]
        set_rate(optimiser, [0.5, 0.25] if isinstance(rate, float) else [0.5, 0.5])
        now = [group["lr"] for group in optimiser.param_groups]
        assert [float(value) for value in now] == ([0.5, 0.25] if isinstance(rate, float) else [0.5, 0.5])
        if isinstance(rate, torch.Tensor):
            assert all(a is b for a, b in zip(held, now, strict=True))


def test_place_touches_only_the_dtype_of_floats():
    batch = {"x": torch.ones(2), "ids": torch.ones(2, dtype=torch.int32), "scale": 3}
    found = place(batch, torch.device("cpu"), torch.float64)
    assert (found["x"].dtype, found["ids"].dtype, found["scale"]) == (torch.float64, torch.int32, 3)


@pytest.mark.parametrize(
    "output",
    [X, {"logits": X, "loss": None}, SimpleNamespace(logits=X), (X, 3), [X]],
    ids=lambda o: type(o).__name__,
)
def test_scores_among_what_a_model_returns(output):
    assert outputs_of(output) is X


@pytest.mark.parametrize("output", [None, 3, {}, (), {"scores": X}, ("x", X)])
def test_no_scores(output):
    with pytest.raises(ModelError, match="model must return a tensor, or one as 'logits' or first, got"):
        outputs_of(output)


def test_small_dense_networks_get_one_thread():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for model, threads in ((build(), 1), (nn.Conv2d(1, 2, 3), 2), (nn.Linear(1000, 1000), 2)):
            with threads_for(model):
                assert torch.get_num_threads() == threads
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_recorded_step_is_the_step(kind):
    """Rates that change, a smaller last batch, zeros held: the same weights as without a graph."""
    models = []
    for graphed in (False, True):
        model = feta.prune(build(), sparsity=0.5, method="threshold").model.cuda()
        rate = torch.tensor(0.1, device="cuda")
        optimiser = (
            torch.optim.SGD(model.parameters(), rate, 0.9, fused=True)
            if kind == "sgd"
            else torch.optim.Adam(model.parameters(), rate, fused=True, capturable=True)
        )
        update = Update(model, optimiser, F.cross_entropy)
        step = GraphedStep(update) if graphed else update
        with feta.hold_zeros(model):
            for number in range(12):
                set_rate(optimiser, [0.1 / (1 + number)])
                rows = slice(0, 8 if number % 4 else 5 if number else 8)
                step(X.cuda()[rows], Y.cuda()[rows])
        models.append(model)
    for plain, recorded in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(plain, recorded, atol=1e-6)
        assert torch.equal(plain == 0, recorded == 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_as_on_a_cpu():
    x, y = torch.randn(600, 6), torch.randint(0, 3, (600,))
    pruned = feta.prune(build(), sparsity=0.5, method="threshold")
    for device in ("cpu", "cuda"):
        retrained = feta.retrain(pruned.model, (x, y), validation=(x, y), max_epochs=2, device=device)
        refined = feta.refine(pruned.model, build(), x, device=device)
        assert retrained.report.device == refined.report.device == device
        for result in (retrained, refined):
            assert {p.device.type for p in result.model.parameters()} == {"cpu"}
            assert all(torch.equal(m, pruned.masks[n]) for n, m in feta.masks_of(result.model).items())
        if device == "cpu":
            expected = (retrained.model, refined.model)
    for found, wanted in zip((retrained.model, refined.model), expected, strict=True):
        assert torch.allclose(found(x), wanted(x), atol=1e-3)
