"""The same result whatever the form, order, size and precision of the data: accuracy on samples nobody was shown.

The task is made here: ten classes of 8 x 8 images, each a fixed pattern under noise and a random gain.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import feta
import nets


@cache
def task(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (count, 64) and their classes, in random order."""
    patterns = torch.randn(10, 8, 8, generator=torch.Generator().manual_seed(7))
    patterns = F.avg_pool2d(patterns[:, None], 3, 1, 1)[:, 0].flatten(1)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=generator)
    gain = 0.5 + torch.rand(count, 1, generator=generator)
    return gain * patterns[labels] + 0.25 * torch.randn(count, 64, generator=generator), labels


def trained(model: nn.Module, images: Tensor, labels: Tensor, steps: int = 300) -> nn.Module:
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(steps):
        rows = torch.arange(step * 64, step * 64 + 64) % len(images)
        optimiser.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimiser.step()
    return model.eval()


@cache
def dense() -> nn.Module:
    return trained(nets.mlp(64, 60, 40, 10), *task(4000, 1))


@cache
def convolutional() -> nn.Module:
    torch.manual_seed(0)
    convs = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *convs, nn.Flatten(), nn.Linear(192, 10))
    return trained(model, *task(4000, 1), steps=200)


def accuracy(model: nn.Module, change: Callable[[Tensor], Tensor] = lambda x: x) -> float:
    images, labels = task(3000, 2)
    with torch.no_grad():
        return 100 * float((model(change(images)).argmax(1) == labels).double().mean())


def pruned(model: nn.Module, data: Any, sparsity: float = 0.9, **more: Any) -> feta.PruneResult:
    return feta.prune(model, data, sparsity, **{"method": "feta", **more})


IMAGES, LABELS = task(1500, 3)
ORDERS = {
    "batches of one": lambda: DataLoader(TensorDataset(IMAGES)),
    "batches of one, shuffled": lambda: DataLoader(TensorDataset(IMAGES), shuffle=True),
    "with labels": lambda: DataLoader(TensorDataset(IMAGES, LABELS), batch_size=7),
    "sorted by class": lambda: IMAGES[LABELS.argsort()],
    "periodic": lambda: periodic(),
    "a generator": lambda: (batch for batch in IMAGES.split(33)),
}


def periodic() -> Tensor:
    """Class = index mod 10, and so many that one in ten of them would be enough for a sample."""
    images, labels = task(41000, 5)
    by_class = [images[labels == c] for c in range(10)]
    least = min(map(len, by_class))
    return torch.stack([rows[:least] for rows in by_class], 1).flatten(0, 1)


@cache
def of_the_tensor() -> float:
    return accuracy(pruned(dense(), IMAGES, 0.95).model)


def test_the_task_can_tell_good_from_bad():
    whole, kept = accuracy(dense()), of_the_tensor()
    cut = accuracy(pruned(dense(), IMAGES, 0.95, method="threshold").model)
    assert whole > 95
    assert kept > whole - 5
    assert cut < kept - 5


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_and_form_of_the_data_do_not_matter(order):
    torch.manual_seed(0)  # of the loader that shuffles
    assert accuracy(pruned(dense(), ORDERS[order](), 0.95).model) == pytest.approx(of_the_tensor(), abs=0.8)


def test_one_noisy_first_image_does_not_matter():
    """It is one of 300; read alone, or weighted as many, it would set every target."""
    images = IMAGES[:300].clone()
    clean = pruned(convolutional(), images, 0.8, layers=["1", "3"])
    images[0] = 20 * torch.randn(64, generator=torch.Generator().manual_seed(0))
    noisy = pruned(convolutional(), images, 0.8, layers=["1", "3"])
    assert accuracy(noisy.model) > accuracy(clean.model) - 4


# Padding


class Tokens(nn.Module):
    """Words, a layer at every position, and the mean over what is no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.fc1, self.fc2 = nn.Embedding(40, 16), nn.Linear(16, 24), nn.Linear(24, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = F.relu(self.fc2(F.relu(self.fc1(self.words(input_ids)))))
        keep = attention_mask[..., None].to(x)
        return self.out((x * keep).sum(1) / keep.sum(1))


def test_padding_is_no_data():
    """What stands at padded positions changes nothing, nor does how far batches are padded."""
    torch.manual_seed(0)
    model, lengths = Tokens(), torch.randint(2, 9, (200,))
    ids = torch.randint(1, 40, (200, 8))
    mask = (torch.arange(8) < lengths[:, None]).long()

    def result(fill: int, width: int) -> feta.PruneResult:
        padded = F.pad(torch.where(mask.bool(), ids, fill), (0, width - 8), value=fill)
        rows = {"input_ids": padded, "attention_mask": F.pad(mask, (0, width - 8))}
        return pruned(model, [{k: v[i : i + 50] for k, v in rows.items()} for i in range(0, 200, 50)], 0.7)

    expected = result(0, 8)
    for found in (result(13, 8), result(13, 40)):
        for name in ("fc1", "fc2"):
            assert torch.equal(found.masks[name], expected.masks[name])
            weights = (r.model.get_submodule(name).weight for r in (found, expected))
            torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-4)


# Precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_what_float32_gives(dtype):
    half = pruned(nets.mlp(64, 60, 40, 10).to(dtype).eval(), IMAGES)  # any weights will do for the first layer
    assert all(torch.isfinite(p).all() for p in half.model.parameters())
    model = dense()
    low = nets.mlp(64, 60, 40, 10).to(dtype)
    low.load_state_dict(model.state_dict())
    found = pruned(low.eval(), IMAGES, 0.95)
    assert accuracy(found.model, lambda x: x.to(dtype)) == pytest.approx(of_the_tensor(), abs=1.5)
    assert {p.dtype for p in found.model.parameters()} == {dtype}
    for layer in found.report.layers:
        assert layer.nonzeros == feta.Sparsity(0.95).count(layer.shape[0] * layer.shape[1])
        assert layer.status == "ok", layer


def test_a_solution_that_float16_cannot_hold_is_never_ok():
    """Inputs that nearly cancel: what is left needs weights of a hundred thousand and more."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 8, generator=generator) * 1e-3
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)).half()
    with torch.no_grad():
        model[0].weight.fill_(40000.0)
        model[0].weight[:, 1::2] = 30000.0
    data = torch.stack([x[:, 0]] * 8, 1)  # one signal: any kept weight must do the work of all
    result = pruned(model, data, 0.8)
    (layer,) = result.report.layers
    assert torch.isfinite(result.model[0].weight).all() or layer.status != "ok"
    assert torch.isfinite(result.model[0].weight).all()
    assert layer.status != "ok" or layer.relative_error <= 1


def test_tiny_inputs_with_weights_to_match():
    model = dense()
    tiny = nets.mlp(64, 60, 40, 10)
    tiny.load_state_dict(model.state_dict())
    with torch.no_grad():
        tiny.fc1.weight.mul_(1e25)
    tiny.eval()
    for quality in ("default", "best"):
        plain = accuracy(pruned(model, IMAGES, options={"quality": quality}).model)
        found = pruned(tiny, IMAGES * 1e-25, options={"quality": quality})
        assert accuracy(found.model, lambda x: x * 1e-25) == pytest.approx(plain, abs=2.5)
        assert found.report.layers[0].relative_error < 0.6


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.fc, self.out = nn.Embedding(10, 8), nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, ids, lengths):
        return self.out(torch.relu(self.fc(self.table(ids).mean(1))))


@pytest.mark.parametrize(
    ("model", "data", "cure"),
    [
        (nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Conv1d(8, 3, 3)), torch.randn(20, 3, 50), None),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 3)), torch.randn(20, 28, 28), "torch.stack"),
        (Several(), {"ids": torch.rand(20, 6), "lengths": torch.full((20,), 6)}, "tokens must be int64"),
        (
            Several(),
            {"ids": torch.full((20, 6), 10), "lengths": torch.full((20,), 6)},
            "less than the number of rows",
        ),
    ],
)
def test_the_cure_fits_what_was_given(model, data, cure):
    with pytest.raises(feta.DataError) as caught:
        feta.prune(model, data, 0.5, layers="*")
    assert cure is None or cure in str(caught.value)
    assert cure == "torch.stack" or "torch.stack" not in str(caught.value)
