"""Mixtures, shifts and splices: each against a brute-force search for what it may have been made of."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tuned import Around, build

import feta
from feta.calibration.inputs import Inputs, places_of
from feta.errors import ConfigError
from feta.tuning.bench import mixing_of
from feta.tuning.draws import Draws, Original, Rows
from feta.tuning.matching import Match
from feta.tuning.mixing import Mixing, is_image

CPU = torch.device("cpu")
ALL = Mixing(mix=1.0, shift=0.0)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dice(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights_of(mixed: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """The weight of x in each row; all entries of a row must agree on it."""
    each = ((mixed - other) / (x - other)).flatten(1)
    torch.testing.assert_close(each, each[:, :1].expand_as(each), rtol=0, atol=1e-6)
    return each[:, 0]


# Mixtures


@pytest.mark.parametrize("shape", [(6,), (5, 3), (5, 4, 4), (2, 3, 4, 4)])
def test_a_mixture_is_a_convex_combination_of_two_rows(shape):
    x, other = drawn(400, *shape), drawn(400, *shape, seed=1)
    weight = weights_of(ALL(x, other, dice()), x, other)
    assert 0 <= weight.min() < 0.05
    assert 0.95 < weight.max() <= 1
    assert weight.mean() == pytest.approx(0.5, abs=0.05)
    assert len(weight.unique()) == 400  # of its own for each row


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_a_share_of_the_rows_is_mixed(share):
    x, other = drawn(50, 6), drawn(50, 6, seed=1)
    found = Mixing(mix=share, shift=0.0)(x, other, dice())
    assert int((found != x).any(1).sum()) == round(50 * share)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dtypes_stay(dtype):
    assert ALL(drawn(5, 6).to(dtype), drawn(5, 6).to(dtype), dice()).dtype == dtype


def test_the_same_generator_gives_the_same_mixture():
    x, other = drawn(20, 1, 12, 12), drawn(20, 1, 12, 12, seed=1)
    one, again, another = (Mixing(mirror=0.5)(x, other, dice(seed)) for seed in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, another)


def test_entries_of_a_dict_are_mixed_with_one_weight():
    x = {"a": drawn(30, 4), "b": drawn(30, 2, 3, seed=1)}
    other = {"a": drawn(30, 4, seed=2), "b": drawn(30, 2, 3, seed=3)}
    found = ALL(x, other, dice())
    torch.testing.assert_close(*(weights_of(found[key], x[key], other[key]) for key in x))


def test_entries_that_are_no_rows_stay():
    rows, others = drawn(30, 4), drawn(30, 4, seed=1)
    more = {"scale": torch.tensor(2.0), "table": drawn(7, 3), "flag": True, "none": None}
    found: Any = ALL({"x": rows, **more}, {"x": others, **more}, dice())
    weights_of(found["x"], rows, others)
    assert list(found) == ["x", *more]
    assert all(found[key] is value for key, value in more.items())


# Images


def shift_by(image: Tensor, down: int, right: int) -> Tensor:
    """Moved by whole pixels, the border repeated: padded, then cut."""
    high, wide = image.shape[-2:]
    padded = F.pad(image[None], (9, 9, 9, 9), mode="replicate")[0]
    return padded[:, 9 - down : 9 - down + high, 9 - right : 9 - right + wide]


def test_shifted_images_are_shifts_with_repeated_borders():
    """Of 24 x 13 pixels: two up or down and one to the side, at the most; each of these 15 is drawn."""
    images = drawn(300, 2, 24, 13)
    found, seen = Mixing(mix=0.0, shift=1.0)(images, images, dice()), []
    for image, moved in zip(images, found, strict=True):
        by = [(d, r) for d in range(-4, 5) for r in range(-4, 5) if torch.equal(shift_by(image, d, r), moved)]
        assert len(by) == 1
        seen += by
    assert set(seen) == {(d, r) for d in range(-2, 3) for r in range(-1, 2)}


def test_a_share_of_the_images_is_shifted():
    images = drawn(300, 1, 40, 40)
    found = Mixing(mix=0.0, shift=0.5)(images, images, dice())
    changed = int((found != images).flatten(1).any(1).sum())
    assert 130 < changed <= 150  # of 81 shifts one is none


def test_mirrored_images():
    images = drawn(40, 3, 8, 9)
    assert torch.equal(Mixing(0.0, 0.0, mirror=1.0)(images, images, dice()), images.flip(-1))
    half = Mixing(0.0, 0.0, mirror=0.5)(images, images, dice())
    flipped = (half == images.flip(-1)).flatten(1).all(1)
    assert int(flipped.sum()) == 20
    assert torch.equal(half[~flipped], images[~flipped])


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (torch.zeros(2, 1, 8, 8), True),
        (torch.zeros(2, 4, 9, 30), True),
        (torch.zeros(2, 5, 8, 8), False),  # features, not colours
        (torch.zeros(2, 3, 7, 30), False),
        (torch.zeros(2, 3, 8), False),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), False),
        ({"x": torch.zeros(2, 3, 8, 8)}, False),
    ],
)
def test_what_an_image_is(x, expected):
    assert is_image(x) is expected
    if not expected and isinstance(x, Tensor):
        assert torch.equal(Mixing(0.0, 1.0, 1.0)(x, x, dice()), x)


# Texts


def cut_of(row: Tensor, first: Tensor, second: Tensor) -> list[int]:
    """Where a row goes on as the second after having begun as the first."""
    return [c for c in range(1, len(row)) if torch.equal(row, torch.cat([first[:c], second[c:]]))]


def test_splices_keep_ids_and_mask_together():
    """Ids are all different, and each entry beside them is a function of its id."""
    count, length = 60, 9
    ids = torch.arange(count * length).view(count, length)
    x, other = (
        {"input_ids": n, "attention_mask": (n % 3 > 0).long(), "shown": (n[..., None] * torch.tensor([0.5, 2.0]))}
        for n in (ids, 1000 + ids)
    )
    found, cuts = ALL(x, other, dice()), []
    assert torch.equal(found["attention_mask"], (found["input_ids"] % 3 > 0).long())
    assert torch.equal(found["shown"], found["input_ids"][..., None] * torch.tensor([0.5, 2.0]))
    for row, first, second in zip(found["input_ids"], x["input_ids"], other["input_ids"], strict=True):
        (cut,) = cut_of(row, first, second)
        cuts.append(cut)
    assert set(cuts) == set(range(1, length))
    half = Mixing(mix=0.5)(x, other, dice())["input_ids"]
    assert int((half != x["input_ids"]).any(1).sum()) == count // 2


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_whole_numbers_are_never_blended(dtype):
    x, other = torch.zeros(50, 7, dtype=dtype), torch.ones(50, 7, dtype=dtype)
    if dtype != torch.bool:
        other = other * 100
    found = ALL(x, other, dice())
    assert found.dtype == dtype
    assert set(found.flatten().tolist()) == {x[0, 0].item(), other[0, 0].item()}
    assert bool((found[:, :-1].int() <= found[:, 1:].int()).all())  # the first text, then the other


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(8),  # a class for each sample
        torch.arange(8)[:, None],
        {"ids": torch.arange(16).view(8, 2), "words": torch.arange(24).view(8, 3)},
        {"x": drawn(8, 4), "kind": torch.arange(8)},
    ],
    ids=["numbers", "one position", "two lengths", "floats beside a class"],
)
def test_what_has_no_positions_stays(x):
    other = {k: v.flip(0) for k, v in x.items()} if isinstance(x, dict) else x.flip(0)
    found = ALL(x, other, dice())
    assert all(torch.equal(found[k], x[k]) for k in x) if isinstance(x, dict) else torch.equal(found, x)


# Shares


@pytest.mark.parametrize(("passes", "part"), [(0.1, 0), (15, 0), (30, 0.25), (45, 0.5), (75, 1), (1e6, 1)])
def test_the_more_passes_the_more_is_mixed(passes, part):
    found = Mixing(0.5, 0.4, 0.3).for_passes(passes)
    assert (found.mix, found.shift, found.mirror) == pytest.approx((0.5 * part, 0.4 * part, 0.3 * part))


@pytest.mark.parametrize("bad", [{"mix": 1.5}, {"shift": -0.1}, {"mirror": float("nan")}])
def test_shares_that_are_none(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ConfigError, match=rf"Mixing.{name} must be in \[0, 1\], got {value}"):
        Mixing(**bad)


def fitted(data: Tensor, **how) -> list[bool]:
    """For each row that a refinement fits, whether it is one of the data as it was given."""
    whole, seen = {tuple(row) for row in data.tolist()}, []

    def call(inner: nn.Module, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            seen.extend(tuple(row) in whole for row in x.tolist())
        return inner(x)

    model = build(6, 8, 3)
    feta.refine(Around(model, call), model, data, feta.Refinement(learning_rate=1e-4, **how))
    return seen


@pytest.mark.parametrize("rows", [20, 4000])
def test_few_rows_are_mixed_and_many_are_not(rows):
    """Forty steps of a hundred rows: 222 passes over 18 rows, one over 3600."""
    seen = fitted(torch.randn(rows, 6, generator=dice()), steps=40)
    assert len(seen) == 4000
    # A row that is mixed with itself stays as it is: one in 18, about.
    assert 2000 < sum(seen) < 2200 if rows == 20 else sum(seen) == 4000


def test_shares_that_are_given_are_taken():
    assert sum(fitted(torch.randn(4000, 6, generator=dice()), steps=5, mixing=Mixing(mix=0.2))) == 400


def tall(x: Tensor) -> Tensor:
    """Scores that a mirror does not change."""
    return torch.stack([x[:, 0, :4].sum((1, 2)), x[:, 0, 4:].sum((1, 2))], 1)


def wide(x: Tensor) -> Tensor:
    return torch.stack([x[..., :4].sum((1, 2, 3)), x[..., 4:].sum((1, 2, 3))], 1)


@pytest.mark.parametrize(
    ("scores", "x", "kind", "expected"),
    [
        (tall, drawn(50, 1, 8, 8), "kl", Mixing(mirror=0.5)),
        (wide, drawn(50, 1, 8, 8), "kl", Mixing()),  # left is not right to it
        (tall, drawn(50, 1, 8, 8), "mse", Mixing()),
        (tall, drawn(50, 1, 8, 7), "kl", Mixing(shift=0.0)),
        (lambda x: x, drawn(50, 6), "kl", Mixing(shift=0.0)),
    ],
)
def test_images_are_mirrored_if_the_original_answers_alike(scores, x, kind, expected):
    original = Original(Around(nn.Identity(), lambda _, x: scores(x)), CPU, torch.float64)
    assert mixing_of(original, x, Match(kind)) == expected


# Draws


def draws(data: Any, model: nn.Module, mixing: Mixing, size: int = 20, seed: int = 5) -> Draws:
    original = Original(model, CPU, torch.float64)
    return Draws(Rows(Inputs(data), CPU, torch.float64), original, mixing, size, 6, seed)


def test_targets_are_those_of_the_mixture():
    data, model = drawn(30, 6), build(6, 8, 3).double()
    before, generator, count = data.clone(), dice(5 * 1_000_003), 0
    for x, y, size in draws(data, model, ALL).over(0):
        first, second = (data[rows] for rows in torch.randint(30, (2, 20), generator=generator))
        apart = (first != second).any(1)
        weight = weights_of(x[apart], first[apart], second[apart])
        assert ((weight >= 0) & (weight <= 1)).all()
        assert torch.equal(x[~apart], first[~apart])
        torch.testing.assert_close(y, model(x).detach())
        assert (size, y.requires_grad) == (20, False)
        count += 1
    assert count == 6
    assert torch.equal(data, before)


def test_rows_of_several_shapes_are_mixed_with_their_like():
    ids = torch.arange(1, 61).view(10, 6)
    data = [{"ids": ids[:4], "attention_mask": ids[:4] % 2}, {"ids": ids[4:, :4], "attention_mask": ids[4:, :4] % 2}]
    before = copy.deepcopy(data)
    model = Around(nn.Embedding(61, 3).double(), lambda table, ids, attention_mask: table(ids))
    seen = set()
    for x, (y, keep), size in draws(data, model, ALL, size=4).over(0):
        texts = ids[:4] if x["ids"].shape[1] == 6 else ids[4:, :4]
        assert all(any(cut_of(row, a, b) for a in texts for b in texts) for row in x["ids"])
        assert torch.equal(x["attention_mask"], x["ids"] % 2)
        assert torch.equal(keep, x["ids"] % 2 == 1)
        torch.testing.assert_close(y, model.inner(x["ids"]).detach())
        seen.add((size, x["ids"].shape[1]))
    assert seen == {(4, 6), (4, 4), (2, 4)}
    assert all(torch.equal(a[key], b[key]) for a, b in zip(data, before, strict=True) for key in a)


def test_a_pass_draws_each_row_of_several_shapes_once():
    data = [drawn(7, 3), drawn(5, 4, seed=1)]
    rows = Rows(data, CPU, torch.float64)
    assert rows.table is None
    pairs = rows.pairs(3, dice())
    batches = [next(pairs)[0] for _ in range(5)]
    assert [tuple(batch.shape) for batch in batches] == [(3, 3), (3, 3), (1, 3), (3, 4), (2, 4)]
    for given, found in zip(data, (torch.cat(batches[:3]), torch.cat(batches[3:])), strict=True):
        assert torch.equal(found.sort(0).values, given.sort(0).values)


@pytest.mark.parametrize("count", [4, 50])
def test_nothing_of_the_callers_changes(count):
    """Neither by mixing itself, nor where a model works in place on what it is given."""
    images, ids = drawn(count, 1, 8, 8).float(), torch.arange(count * 6).view(count, 6)
    mask = torch.ones_like(ids)
    before = [tensor.clone() for tensor in (images, ids, mask)]

    def spoil(inner: nn.Module, x: Tensor) -> Tensor:
        return inner(x.mul_(2.0).flatten(1))

    def wipe(parts: nn.ModuleList, ids: Tensor, attention_mask: Tensor) -> Tensor:
        scores = parts[1](parts[0](ids.remainder_(11)).mean(1))
        attention_mask.zero_()
        return scores

    how = feta.Refinement(steps=5, learning_rate=1e-4, mixing=Mixing(0.5, 0.5, 0.5))
    model = Around(build(64, 5, 3), spoil)
    assert places_of(count).numel() == count
    feta.refine(model, copy.deepcopy(model), images, how)
    model = Around(nn.ModuleList([nn.Embedding(11, 4), build(4, 5, 3)]), wipe)
    feta.refine(model, copy.deepcopy(model), {"ids": ids, "attention_mask": mask}, how)
    assert all(torch.equal(*pair) for pair in zip((images, ids, mask), before, strict=True))
