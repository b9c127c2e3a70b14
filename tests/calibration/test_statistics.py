"""One-pass sums against their float64 definition, however the rows are cut."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feta.calibration.statistics import column_norms, cross, gram
from feta.calibration.stream import TensorStream
from feta.errors import DataError

STATISTICS = [gram, lambda s: cross(s, lambda A, B: B), column_norms]


def rows(m: int, d_in: int = 4, d_out: int = 3, seed: int = 0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(m, d, generator=generator, dtype=dtype) for d in (d_in, d_out))


def extended(A: torch.Tensor, with_bias: bool) -> torch.Tensor:
    A = A.double()
    return torch.cat([A, torch.ones(len(A), 1, dtype=torch.float64)], dim=1) if with_bias else A


@pytest.mark.parametrize("with_bias", [True, False])
@given(m=st.integers(1, 30), chunk=st.integers(1, 31), seed=st.integers(0, 5))
def test_sums_are_those_of_the_definition_whatever_the_chunks(with_bias, m, chunk, seed):
    A, B = rows(m, seed=seed)
    stream, E = TensorStream(A, B, chunk), extended(A, with_bias)
    found = gram(stream, with_bias=with_bias)
    torch.testing.assert_close(found.H, E.t() @ E)
    assert (found.rows, found.with_bias) == (m, with_bias)
    torch.testing.assert_close(cross(stream, lambda A, B: B, with_bias=with_bias), E.t() @ B)
    found = cross(stream, lambda A, B: A[:, :2] * B[:, :1], with_bias=with_bias)  # targets computed from the rows
    torch.testing.assert_close(found, E.t() @ (A[:, :2] * B[:, :1]))
    torch.testing.assert_close(column_norms(stream), A.norm(dim=0))


def test_float32_rows_are_added_up_in_float64():
    """In float32 a sum of 2^24 and ones would stand still."""
    A = torch.cat([torch.full((1, 1), 4096.0), torch.ones(1000, 1)])
    H = gram(TensorStream(A, A, chunk_rows=1)).H
    assert H.dtype == torch.float64
    assert H.tolist() == [[2.0**24 + 1000, 5096.0], [5096.0, 1001.0]]
    assert column_norms(TensorStream(A, A, chunk_rows=1)).item() ** 2 == pytest.approx(2.0**24 + 1000, rel=1e-12)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_float32_is_close_to_float64(chunk):
    A, B = rows(1000, dtype=torch.float32)
    E = extended(A, True)
    torch.testing.assert_close(gram(TensorStream(A, B, chunk)).H, E.t() @ E, rtol=1e-5, atol=1e-3)
    found = cross(TensorStream(A, B, chunk), lambda A, B: B)
    torch.testing.assert_close(found, E.t() @ B.double(), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("statistic", STATISTICS, ids=["gram", "cross", "norms"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_or_overflow(statistic, bad):
    A, B = rows(10, dtype=torch.float32)
    A[4, 2] = bad
    B[4] = 1e10
    with pytest.raises(DataError, match="a layer's inputs must be finite, got NaN, infinite or overflowing"):
        statistic(TensorStream(A, B, 3))


def test_small_variance_around_a_large_mean_survives_float32():
    A = 1000 + 0.01 * torch.randn(5000, 3, generator=torch.Generator().manual_seed(0))
    H = gram(TensorStream(A, A, chunk_rows=100)).H
    E = extended(A, True)
    spread = lambda H: (H - torch.outer(H[-1], H[-1]) / 5000)[:3, :3]  # noqa: E731
    torch.testing.assert_close(spread(H), spread(E.t() @ E), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("size", [1e-38, 1e-25, 1e-12, 1e-9, 1e-7, 1.0, 1e14, 1e16, 1e18])
def test_inputs_of_any_size_are_as_exact_as_those_near_one(size, chunk):
    """Squares of 1e-25 are zero in float32, sums of squares of 1e18 are not finite."""
    generator = torch.Generator().manual_seed(0)
    A = (torch.randn(300, 4, generator=generator) + 0.5) * size
    E = extended(A, True)
    exact = E.t() @ E
    H = gram(TensorStream(A, A, chunk)).H
    scale = exact.diagonal().sqrt()
    torch.testing.assert_close(H / torch.outer(scale, scale), exact / torch.outer(scale, scale), rtol=0, atol=1e-5)
    assert bool((H.diagonal() > 0).all())


@pytest.mark.parametrize("size", [1e-25, 1e18])
def test_norms_of_very_small_and_large_inputs(size):
    A = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)) * size
    torch.testing.assert_close(column_norms(TensorStream(A, A, 7)), A.double().norm(dim=0), rtol=1e-5, atol=0)


def test_inputs_of_different_sizes_side_by_side():
    """The largest column decides the scale; a column that is much smaller keeps its digits."""
    A = torch.randn(300, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e-9, 1e-14, 1e-18])
    E = extended(A, True)
    exact = (E.t() @ E).diagonal()
    torch.testing.assert_close(gram(TensorStream(A, A, 50)).H.diagonal(), exact, rtol=1e-5, atol=0)


def test_a_first_chunk_that_is_much_smaller_than_the_others():
    A = torch.cat([torch.zeros(10, 3), 1e-25 * torch.ones(10, 3), torch.randn(80, 3)])
    E = extended(A, True)
    torch.testing.assert_close(gram(TensorStream(A, A, 10)).H, E.t() @ E, rtol=1e-5, atol=1e-4)


def test_a_first_chunk_of_zeros_among_small_inputs():
    small = torch.cat([torch.zeros(10, 3), 1e-25 * (1 + torch.rand(10, 3))])
    E = extended(small, True)
    exact = (E.t() @ E).diagonal()
    torch.testing.assert_close(gram(TensorStream(small, small, 10)).H.diagonal(), exact, rtol=1e-5, atol=0)


def test_layers_with_one_input_share_one_pass():
    """gram() reads the rows once for all of them; with and without a bias it is the same sum."""

    class Counted:
        shared: dict
        passes = 0

        def __init__(self):
            self.shared = {}

        def inputs(self):
            Counted.passes += 1
            yield from A.split(3)

    A, _ = rows(10)
    stream = Counted()
    whole, alone = gram(stream), gram(stream, with_bias=False)
    assert Counted.passes == 1
    assert torch.equal(whole.H[:-1, :-1], alone.H)
    torch.testing.assert_close(alone.H, A.t() @ A)
    assert (whole.with_bias, alone.with_bias, alone.rows) == (True, False, 10)
    torch.testing.assert_close(gram(TensorStream(A, A, 3)).H, whole.H)  # nothing is shared with tensors


class Empty:
    n_rows = 0

    def chunks(self):
        return iter(())

    inputs = chunks


@pytest.mark.parametrize("statistic", STATISTICS, ids=["gram", "cross", "norms"])
def test_no_rows(statistic):
    with pytest.raises(DataError, match="must hold at least one row, got none"):
        statistic(Empty())
