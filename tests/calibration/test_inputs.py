"""The user's data, whatever its form, as the same batches on every pass."""

import gc
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils import data as loaders
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from feta.calibration.inputs import Inputs, Merged, fitting_size, marks_of, places_of, rows_of, size_of, tokens_of
from feta.calibration.model import call
from feta.errors import ConfigError, DataError

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
    "(dict, y) pairs": lambda: list(zip([{"x": x} for x in BATCHES], Y.split(4), strict=True)),
    "DataLoader of x alone": lambda: DataLoader(X, batch_size=4),
}


@pytest.mark.parametrize("make", list(FORMS.values()), ids=list(FORMS))
def test_every_form_gives_the_rows_in_order_on_every_pass(make):
    inputs = Inputs(make(), batch_size=4)
    for _ in range(2):
        batches = [batch["x"] if isinstance(batch, dict) else batch for batch in inputs]
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


class Padded(nn.Module):
    def forward(self, x, pad=None):
        return x


class Told(nn.Module):
    def forward(self, x, targets=None):
        return x


X3 = torch.zeros(4, 6, 3)


@pytest.mark.parametrize("one_shot", [False, True])
def test_a_second_input_in_a_pair_is_asked_for(one_shot):
    pairs = [(X3, torch.ones(4, 6) > 0), (X3, torch.ones(4, 6) > 0)]
    with pytest.warns(UserWarning, match="is the second its 'pad'") as told:
        Inputs(iter(pairs) if one_shot else pairs, model=Padded())
    assert len(told) == 1


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (Padded(), [(X3, torch.zeros(4))]),
        (Padded(), [{"x": X3, "pad": torch.ones(4, 6) > 0}]),
        (Told(), [(X3, torch.ones(4, 6))]),
        (nn.Linear(3, 2), [(X3, torch.ones(4, 6))]),
        (None, [(X3, torch.ones(4, 6))]),
    ],
)
def test_labels_are_not_asked_for(model, data):
    assert Inputs(data, model=model).count == 4  # warnings are errors


def test_a_limit_reads_no_more_than_it_needs():
    def endless():
        while True:
            yield torch.ones(4, 2)

    assert len(rows(Inputs(endless(), n_samples=10))) == 10


@pytest.mark.parametrize("stride", [1, 2, 3, 7, 9, 30])
def test_one_in_stride_samples_are_drawn_whatever_the_batches(stride):
    whole = Inputs(X, batch_size=4)
    drawn = whole.drawn(stride)
    for _ in range(2):
        assert len(rows(drawn)) == drawn.count == -(-10 // stride)
    assert torch.equal(rows(drawn), rows(drawn).unique(dim=0))  # distinct, in the order of the data
    assert all(len(batch) for batch in drawn)
    assert torch.equal(rows(whole), X)
    for size in (1, 3, 10):
        assert torch.equal(rows(Inputs(X, batch_size=size).drawn(stride)), rows(drawn))
    named = Inputs([{"x": batch, "flag": True} for batch in whole]).drawn(stride)
    assert torch.equal(torch.cat([batch["x"] for batch in named]), rows(drawn))


@pytest.mark.parametrize("stride", [1, 3, 4])
def test_other_starts_draw_others_and_together_they_are_all(stride):
    parts = [rows(Inputs(X, batch_size=4).drawn(stride, start)) for start in range(stride)]
    assert torch.equal(torch.cat(parts).unique(dim=0), X)
    assert sum(map(len, parts)) == 10
    later = rows(Inputs(X, batch_size=4).drawn(stride, stride))
    assert {tuple(row) for row in later.tolist()} < {tuple(row) for row in parts[0].tolist()}


def test_samples_are_drawn_from_all_over_sorted_data():
    """Every tenth of the data gives about a tenth of the samples: within 5 standard deviations."""
    data = torch.arange(10_000.0)[:, None]
    for start in (0, 1, 7):
        drawn = rows(Inputs(data).drawn(10, start))[:, 0]
        counts = torch.histc(drawn, 10, 0, 10_000)
        assert bool(((counts - 100).abs() < 5 * (100 * 0.9) ** 0.5).all())
        assert len(set((drawn % 10).tolist())) == 10  # no step of its own


def test_picked_samples_in_their_order():
    chosen = torch.tensor([True, False, False, True, True, False, False, False, False, True])
    for size in (1, 4, 10):
        picked = Inputs(X, batch_size=size).picked(chosen)
        assert torch.equal(rows(picked), X[chosen])
        assert picked.count == 4
        assert all(len(batch) for batch in picked)
    one = Inputs(X, n_samples=6, seed=3)
    assert torch.equal(rows(one.picked(chosen[:6])), rows(one)[chosen[:6]])
    assert one.count == 6


def test_picked_again_and_drawn_again():
    half = Inputs(X, batch_size=3).picked(torch.arange(10) % 2 == 0)
    assert torch.equal(rows(half.picked(torch.tensor([False, True, True, False, False]))), X[[2, 4]])
    assert len(rows(half.drawn(2))) == 3


@given(st.integers(1, 300))
def test_places_are_a_permutation_that_never_changes(count):
    assert torch.equal(places_of(count).sort().values, torch.arange(count))
    assert torch.equal(places_of(count), places_of(count))
    assert count < 10 or not torch.equal(places_of(count), torch.arange(count))


def test_the_number_of_samples_is_counted_in_every_form():
    for make in FORMS.values():
        assert Inputs(make(), batch_size=4).count == 10
        assert Inputs(make(), batch_size=4, n_samples=7).count == 7


# How much runs at once


def test_a_batch_that_fits():
    assert fitting_size(torch.empty(5, 3, 32, 32)) == 2**20 // 3072
    assert fitting_size(torch.empty(5, 3, 32, 32), 0.25) == 2**18 // 3072
    assert fitting_size(torch.empty(2, 4)) == 1000
    assert fitting_size(torch.empty(2, 2**21)) == 1
    ids = torch.zeros(4, 512, dtype=torch.int64)
    assert fitting_size(ids) == 2**20 // (512 * 128)
    assert fitting_size({"ids": ids, "mask": ids, "flag": True}) == 2**20 // (2 * 512 * 128)
    assert fitting_size(torch.empty(0, 3)) == 1000


def test_a_tensor_is_cut_into_batches_that_fit():
    sizes = [len(batch) for batch in Inputs(torch.zeros(700, 3, 32, 32))]
    assert sizes == [341, 341, 18]
    assert [len(batch) for batch in Inputs(X, batch_size=6)] == [6, 4]


def test_whole_numbers_of_a_sample():
    ids = torch.zeros(4, 12, dtype=torch.int64)
    assert tokens_of({"ids": ids, "mask": ids[:, :5], "x": torch.zeros(4, 99)}) == 12
    assert tokens_of(ids) == 12
    assert tokens_of(torch.zeros(4, 12)) == tokens_of({"label": torch.zeros(4, dtype=torch.int64)}) == 0


def small(*sizes: int) -> list[torch.Tensor]:
    """Batches of samples that are a quarter of what runs well at once."""
    whole = torch.arange(float(sum(sizes)))[:, None, None].expand(-1, 2**9, 2**9)
    return list(whole.split(sizes))


def test_small_batches_are_merged_in_order_up_to_what_fits():
    merged = list(Merged(small(1, 1, 1, 1, 1, 3, 2, 4, 1)))
    assert [len(batch) for batch in merged] == [4, 4, 2, 4, 1]
    assert torch.equal(torch.cat(merged)[:, 0, 0], torch.arange(15.0))
    assert [len(batch) for batch in Merged(small(1, 1, 1, 1), 0.5)] == [2, 2]
    assert [len(batch) for batch in Merged(small(9, 1))] == [9, 1]  # never cut
    assert list(Merged([])) == []


def test_large_batches_are_cut_where_that_is_asked_for():
    cut = list(Merged(small(9, 1, 1, 4, 5), cut=True))
    assert [len(batch) for batch in cut] == [4, 4, 1, 2, 4, 4, 1]
    assert torch.equal(torch.cat(cut)[:, 0, 0], torch.arange(20.0))
    (one, other, last) = Merged([{"x": small(9)[0], "flag": True}], cut=True)
    assert (len(one["x"]), len(other["x"]), len(last["x"]), last["flag"]) == (4, 4, 1, True)


def test_only_batches_that_are_alike_are_merged():
    """Another kind, another shape or another type ends a batch; so does a dict's entry that is not per sample."""
    batches = [X[:2], X[2:3], {"x": X[:1]}, {"x": X[1:4]}, X[7:8], X[:1, :1], X[8:].double(), X[:1]]
    merged = list(Merged(batches))
    sizes = [size_of(batch) for batch in merged]
    assert sizes == [3, 4, 1, 1, 2, 1]
    assert torch.equal(merged[0], X[:3])
    assert torch.equal(merged[1]["x"], X[:4])
    flagged = [{"x": X[:1], "flag": True}, {"x": X[1:2], "flag": True}]
    assert list(map(size_of, Merged(flagged))) == [1, 1]
    scaled = [{"x": X[:2], "scale": torch.ones(3)}] * 2
    assert list(map(size_of, Merged(scaled))) == [2, 2]
    other = [{"x": X[:1]}, {"y2": X[1:2]}]
    assert [list(batch) for batch in Merged(other)] == [["x"], ["y2"]]


def test_dicts_of_other_types_are_not_merged():
    merged = list(Merged([{"x": X[:1]}, {"x": X[1:2].double()}]))
    assert [batch["x"].dtype for batch in merged] == [torch.float32, torch.float64]


def test_some_samples_of_a_batch():
    batch = {"x": X, "mask": Y, "scale": torch.ones(3), "flag": True}
    for chosen in (slice(2, 5), torch.tensor([2, 3, 4])):
        found = rows_of(batch, chosen)
        assert torch.equal(found["x"], X[2:5])
        assert torch.equal(found["mask"], Y[2:5])
        assert (len(found["scale"]), found["flag"]) == (3, True)
        assert torch.equal(rows_of(X, chosen), X[2:5])


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
        (X.numpy(), r"got a ndarray of shape \(10, 2\); write torch.from_numpy\(data\)"),
        (["a"], "data must yield tensors of samples, .* got"),
        ([[1, 2]], "data must yield tensors of samples, .* got"),
        ([()], "data must yield tensors of samples, .* got"),
        (X.reshape(-1), r"samples as rows \(2 or more dimensions\), got shape \(20,\)$"),
        (Y, r"got shape \(10,\); if these are labels, give the inputs"),
        ([X.numpy()], "write torch.from_numpy\\(x\\) for each"),
        ([((X, X), Y)], "of several inputs give dicts by their names"),
        ([[{"x": X}, {"x": X}]], "data must yield tensors of samples"),  # of the samples all but the first would go
    ],
)
def test_not_data(data, message):
    with pytest.raises(ConfigError, match=message):
        Inputs(data)


@pytest.mark.parametrize(
    ("data", "cure"),
    [
        ("digits.npz", r"got str 'digits.npz'; load it first.* or give it to the command line"),
        (Path("digits.npz"), "got PosixPath 'digits.npz'; load it first"),
        (X.numpy(), r"write torch.from_numpy\(data\)"),
        (TensorDataset(X), r"got TensorDataset; write torch.utils.data.DataLoader\(data, batch_size=100\)"),
        (["a"], "data must yield tensors of samples"),
    ],
)
def test_what_is_no_data_is_an_error_of_data_with_its_cure(data, cure):
    with pytest.raises(DataError, match=cure):
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


@pytest.mark.parametrize("times", [2, 10])
def test_a_sample_that_is_there_several_times_is_judged_by_once_and_never_fitted(times):
    rows = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    fit, held = Inputs(rows.repeat(times, 1)).split()
    one, other = (torch.cat(list(part)) for part in (fit, held))
    assert 10 <= len(other) <= 30
    assert len(other.unique(dim=0)) == len(other)
    assert len(one.unique(dim=0)) + len(other) == 200
    assert len(one) == times * (200 - len(other))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_equal_samples_have_equal_marks_in_batches_of_any_size(dtype):
    rows = torch.randint(0, 2, (6, 9)).to(dtype)
    rows[4] = rows[1]
    batch = {"x": rows, "scale": torch.arange(6) % 3, "whole": torch.ones(2)}
    marks = marks_of(batch)
    alone = [marks_of(rows_of(batch, slice(row, row + 1))) for row in range(6)]
    assert marks.tolist() == torch.cat(alone).tolist()
    assert marks[1] == marks[4]
    batch["scale"][4] += 1
    assert marks_of(batch)[1] != marks_of(batch)[4]


@pytest.mark.parametrize("seed", range(5))
def test_a_sample_that_is_there_very_often_is_fitted(seed):
    """Half of the data is one record: whatever the order, it is seen."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.cat([torch.zeros(500, 3), torch.randn(500, 3, generator=generator)])
    fit, held = Inputs(rows[torch.randperm(1000, generator=generator)]).split()
    one, other = (torch.cat(list(part)) for part in (fit, held))
    assert (one == 0).all(1).sum() == 500
    assert not (other == 0).all(1).any()
    assert 30 <= len(other) <= 80


@pytest.mark.parametrize("kinds", [1, 3, 12, 16])
def test_of_hardly_any_different_samples_as_many_are_held_out_as_of_others(kinds):
    fit, held = Inputs(torch.randn(kinds, 3).repeat(1000 // kinds, 1)).split()
    assert held.count == -(-len(torch.cat([*fit, *held])) // 10)
