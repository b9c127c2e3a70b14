"""Sums that do not depend on the order of their terms, and are as good as others."""

import pytest
import torch

from feta.calibration.statistics import cross, gram
from feta.calibration.stream import TensorStream
from feta.calibration.sums import ProductSum, sizes
from feta.ranks import ALONE


def chunks(kind: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    parts = [torch.randn(20 + n, 7, generator=generator) @ torch.randn(7, 12, generator=generator) for n in range(40)]
    if kind == "whole numbers":  # their products lie in the middle of two multiples of a grid again and again
        return [part.mul(3).round() for part in parts]
    if kind == "late":  # columns that the first chunk does not have, or hardly
        parts[0][:, :5] = 0
        parts[0][3, 4] = 1e-5
    if kind == "uneven":
        return [part * torch.logspace(-6, 5, 12) for part in parts]
    return parts


def total(parts: list[torch.Tensor], first: torch.Tensor) -> torch.Tensor:
    found = ProductSum(sizes(first), sizes(first), exact=True)
    for part in parts:
        found.add(part.t() @ part)
    return found.over(ALONE)


@pytest.mark.parametrize("kind", ["plain", "whole numbers", "late", "uneven"])
def test_any_order_of_the_terms_gives_the_same_bits(kind):
    parts = chunks(kind)
    whole = total(parts, parts[0])
    for seed in range(5):
        order = torch.randperm(len(parts), generator=torch.Generator().manual_seed(seed)).tolist()
        assert torch.equal(total([parts[n] for n in order], parts[0]), whole)
    halves = [ProductSum(sizes(parts[0]), sizes(parts[0]), exact=True) for _ in range(2)]
    for number, part in enumerate(parts):
        halves[number % 2].add(part.t() @ part)
    for half in halves:  # as processes do
        half.total.addr_(half.rows, half.columns, alpha=-half.anchor)
    one = ProductSum(sizes(parts[0]), sizes(parts[0]), exact=True)
    one.total.addr_(one.rows, one.columns, alpha=-one.anchor).add_(halves[0].total).add_(halves[1].total)
    assert torch.equal(one.total.div_(whole.new_tensor(1 + 2.0**-29)), whole)


@pytest.mark.parametrize("kind", ["plain", "whole numbers", "late", "uneven"])
def test_sums_are_as_near_to_the_truth_as_plain_ones(kind):
    parts = chunks(kind)
    truth = sum(part.double().t() @ part.double() for part in parts)
    plain = sum((part.t() @ part).double() for part in parts)
    scale = truth.diagonal().sqrt()
    worst = ((plain - truth) / scale / scale[:, None]).abs().max()
    found = ((total(parts, parts[0]) - truth) / scale / scale[:, None]).abs().max()
    assert found <= worst + 1e-8


def test_a_sum_that_outgrows_its_grid_is_still_right():
    first, later = torch.full((1, 2), 1e-12), torch.tensor([[3.0, 5.0]])
    found = total([first, later, later], first)
    assert torch.allclose(found, 2 * later.double().t() @ later.double(), rtol=1e-15)


def test_columns_that_the_first_chunk_lacks_are_not_lost():
    first, later = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[0.0, 3e-4, 0.0]])
    found = total([first, later], first)
    assert float(found[1, 1]) == pytest.approx(9e-8, rel=1e-6)
    empty = torch.zeros(1, 3)
    assert torch.allclose(total([empty, later], empty), later.double().t() @ later.double(), rtol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_statistics_do_not_depend_on_where_the_later_chunks_come(dtype):
    parts = [part[:20].to(dtype) for part in chunks("late")]
    back = [parts[0], *parts[:0:-1]]
    one, other = (TensorStream(torch.cat(each), torch.cat(each), chunk_rows=20) for each in (parts, back))
    near = {"rtol": 0, "atol": 0} if dtype is torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    assert torch.allclose(gram(one).H, gram(other).H, **near)
    assert torch.allclose(cross(one, lambda A, B: B), cross(other, lambda A, B: B), **near)
