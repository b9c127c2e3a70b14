"""The user's data, whatever its form, as the same batches on every pass."""

import gc
import tempfile
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils import data as loaders
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from feta.calibration.inputs import Inputs, Merged
from feta.calibration.model import call
from feta.errors import ConfigError

X = torch.arange(20.0).reshape(10, 2)
Y = torch.arange(10)
BATCHES = [X[:4], X[4:8], X[8:]]


def rows(inputs: Inputs) -> torch.Tensor:
    return torch.cat(list(inputs))


FORMS = {
    "tensor": lambda: X,
    "list of tensors": lambda: BATCHES,
    "tuple of tensors": lambda: tuple(BATCHES),
    "(x, y) pairs": lambda: list(zip(BATCHES, Y.split(4), strict=True)),
    "[x, y] lists": lambda: [[x, y] for x, y in zip(BATCHES, Y.split(4), strict=True)],
    "generator": lambda: (batch for batch in BATCHES),
    "iterator": lambda: iter(BATCHES),
    "DataLoader": lambda: DataLoader(TensorDataset(X, Y), batch_size=4),
    "DataLoader of x alone": lambda: DataLoader(X, batch_size=4),
}


@pytest.mark.parametrize("make", list(FORMS.values()), ids=list(FORMS))
def test_every_form_gives_the_rows_in_order_on_every_pass(make):
    inputs = Inputs(make(), batch_size=4)
    for _ in range(2):
        batches = list(inputs)
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert torch.equal(torch.cat(batches), X)


@pytest.mark.parametrize("one_shot", [False, True])
@pytest.mark.parametrize("label", ["label", "labels", "target", "targets", "y"])
def test_dicts_lose_their_labels_and_nothing_else(one_shot, label):
    data = [{"x": X[:4], "flag": True, label: Y[:4]}, {"x": X[4:], "flag": True, label: Y[4:]}]
    inputs = Inputs(iter(data) if one_shot else data)
    for _ in range(2):
        batches = list(inputs)
        assert [set(batch) for batch in batches] == [{"x", "flag"}] * 2
        assert torch.equal(torch.cat([batch["x"] for batch in batches]), X)
        assert batches[0]["flag"] is True


class Streamed(loaders.IterableDataset):
    """A stream that goes on where it stopped, as one over a socket would."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self):
        for _ in range(10):
            self.position += 1
            yield torch.full((2,), float(self.position))


RANDOM = {
    "shuffle": lambda: DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True),
    "subset": lambda: DataLoader(X, batch_size=4, sampler=SubsetRandomSampler(range(10))),
    "weighted": lambda: DataLoader(X, batch_size=4, sampler=loaders.WeightedRandomSampler([1.0] * 10, 10)),
    "batch sampler": lambda: DataLoader(
        X, batch_sampler=loaders.BatchSampler(SubsetRandomSampler(range(10)), 4, drop_last=False)
    ),
    "stream": lambda: DataLoader(Streamed(), batch_size=4),
}


@pytest.mark.parametrize("make", list(RANDOM.values()), ids=list(RANDOM))
def test_a_loader_that_would_differ_is_kept_from_its_first_pass(make):
    torch.manual_seed(0)
    loader = make()
    assert not torch.equal(torch.cat([_x(b) for b in loader]), torch.cat([_x(b) for b in loader]))
    inputs = Inputs(loader)
    first, second = rows(inputs), rows(inputs)
    assert len(first) == 10
    assert torch.equal(first, second)


def _x(batch: torch.Tensor | list[torch.Tensor]) -> torch.Tensor:
    return batch if isinstance(batch, torch.Tensor) else batch[0]


def test_an_ordered_loader_is_used_in_place(monkeypatch):
    monkeypatch.setattr("feta.calibration.inputs.Spill", Mock(side_effect=AssertionError))
    assert torch.equal(rows(Inputs(DataLoader(X, batch_size=4))), X)


def test_a_subset_is_drawn_by_seed_without_replacement_in_the_order_of_the_data():
    drawn = rows(Inputs(X, n_samples=6, seed=3, batch_size=4))
    assert len(drawn) == 6
    assert torch.equal(drawn, drawn.unique(dim=0))  # sorted and distinct, as X is
    assert torch.equal(drawn, rows(Inputs(X, n_samples=6, seed=3, batch_size=5)))
    assert not torch.equal(drawn, X[:6])
    assert any(not torch.equal(drawn, rows(Inputs(X, n_samples=6, seed=seed))) for seed in range(3))


@given(st.integers(1, 14), st.lists(st.integers(1, 4), min_size=1, max_size=5), st.booleans())
def test_a_limit_cuts_iterables_at_the_right_row(n, sizes, one_shot):
    data = list(torch.arange(2.0 * sum(sizes)).reshape(-1, 2).split(sizes))
    inputs = Inputs(iter(data) if one_shot else data, n_samples=n)
    for _ in range(2):
        assert torch.equal(rows(inputs), torch.cat(data)[:n])


def test_a_limit_cuts_every_tensor_of_a_dict():
    data = [{"x": X, "mask": Y, "scale": torch.ones(3), "flag": True}]
    (batch,) = Inputs(data, n_samples=7)
    assert (len(batch["x"]), len(batch["mask"]), len(batch["scale"]), batch["flag"]) == (7, 7, 3, True)


def test_a_limit_reads_no_more_than_it_needs():
    def endless():
        while True:
            yield torch.ones(4, 2)

    assert len(rows(Inputs(endless(), n_samples=10))) == 10


@pytest.mark.parametrize("stride", [1, 2, 3, 7, 9])
def test_thinned_takes_every_stride_th_sample_whatever_the_batches(stride):
    whole = Inputs(X, batch_size=4)
    thin = whole.thinned(stride)
    for _ in range(2):
        assert torch.equal(torch.cat(list(thin)), X[::stride])
    assert all(len(batch) for batch in thin)
    assert torch.equal(rows(whole), X)
    named = Inputs([{"x": batch, "flag": True} for batch in whole]).thinned(stride)
    assert torch.equal(torch.cat([batch["x"] for batch in named]), rows(thin))
    for start in (1, 3, 6, 8):
        assert torch.equal(torch.cat([X[:0], *whole.thinned(stride, start)]), X[start::stride])


def test_small_batches_are_merged_in_order():
    batches = [X[:2], X[2:3], X[3:7], {"x": X[:1]}, X[7:8], X[:1, :1], X[8:]]
    merged = list(Merged(batches, 3))
    sizes = [len(batch) if isinstance(batch, torch.Tensor) else "dict" for batch in merged]
    assert sizes == [3, 4, "dict", 1, 1, len(X) - 8]
    assert torch.equal(torch.cat(list(Merged(X.split(2), 4))), X)
    assert list(Merged([])) == []


@pytest.mark.parametrize(
    "make",
    [list, lambda: iter([]), lambda: torch.empty(0, 3), lambda: [torch.empty(0, 3)], lambda: iter([X[:0]])],
    ids=["list", "iterator", "tensor", "batch", "batch of an iterator"],
)
def test_no_rows(make):
    with pytest.raises(ConfigError, match="data must hold at least one sample, got none"):
        Inputs(make())


def test_empty_batches_among_others_do_no_harm():
    assert torch.equal(rows(Inputs([X[:0], X[:4], X[:0], X[4:]])), X)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("images.pt", "data must be a tensor or an iterable of batches, got str"),
        (b"x", "data must be a tensor or an iterable of batches, got bytes"),
        (7, "data must be a tensor or an iterable of batches, got int"),
        (None, "data must be a tensor or an iterable of batches, got NoneType"),
        (["a"], "data must yield tensors, .* got a batch of type str"),
        ([[1, 2]], "data must yield tensors, .* got a batch of type list"),
        ([()], "data must yield tensors, .* got a batch of type tuple"),
        (X.reshape(-1), r"samples as rows \(2 or more dimensions\), got shape \(20,\)"),
    ],
)
def test_not_data(data, message):
    with pytest.raises(ConfigError, match=message):
        Inputs(data)


@pytest.mark.parametrize(("name", "value"), [("n_samples", 0), ("n_samples", -3), ("batch_size", 0)])
def test_sizes_below_one(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be >= 1, got {value}"):
        Inputs(X, **{name: value})


def test_nothing_is_left_of_the_kept_copy(monkeypatch, tmp_path):
    def failing():
        yield X
        raise RuntimeError("the disk of the data is gone")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert torch.equal(rows(Inputs(iter(BATCHES))), X)
    with pytest.raises(RuntimeError, match="the disk of the data is gone"):
        Inputs(failing())
    gc.collect()  # an open file would be a warning, and so an error
    assert list(tmp_path.iterdir()) == []


def test_call_places_floats_and_leaves_whole_numbers():
    seen = {}

    class Model(nn.Module):
        def forward(self, **inputs):
            seen.update(inputs)

    call(Model(), {"x": X, "ids": Y, "flag": True}, dtype=torch.float64)
    assert (seen["x"].dtype, seen["ids"].dtype, seen["flag"]) == (torch.float64, torch.int64, True)


def test_a_model_that_works_in_place_does_not_change_the_data():
    class Normalising(nn.Module):
        def forward(self, x):
            return x.sub_(x.mean())

    data = X.clone()
    call(Normalising(), data)
    assert torch.equal(data, X)
