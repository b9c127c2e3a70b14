"""Patterns against loops over groups and blocks and against all masks there are; what is refused."""

from itertools import combinations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feta.errors import ConfigError
from feta.patterns import Blocks, NofM, parse_pattern
from feta.sparsity import Sparsity

SEEDS, FEW = st.integers(0, 99), st.integers(1, 5)


def scores_of(seed, d_in, d_out, ties=False):
    found = torch.rand(d_in, d_out, generator=torch.Generator().manual_seed(seed))
    return (4 * found).floor() if ties else found


def groups_of(d_in, taps, m):
    """Inputs of each group, tap by tap: channels that meet one tap lie `taps` apart."""
    channels = d_in // taps
    return [
        [c * taps + tap for c in range(start, min(start + m, channels))]
        for tap in range(taps)
        for start in range(0, channels, m)
    ]


@given(SEEDS, st.integers(1, 13), FEW, st.sampled_from([1, 2, 9]), st.booleans(), st.integers(2, 6), st.data())
def test_n_of_m_keeps_the_largest_of_every_group(seed, channels, d_out, taps, ties, m, data):
    pattern = NofM(data.draw(st.integers(1, m - 1)), m).over(taps)
    scores = scores_of(seed, channels * taps, d_out, ties)
    expected = torch.zeros_like(scores, dtype=torch.bool)
    for group, j in product(groups_of(len(scores), taps, m), range(d_out)):
        quota = -(-len(group) * pattern.n // m)
        for i in sorted(group, key=lambda i: (-scores[i, j], i))[:quota]:
            expected[i, j] = True
    assert torch.equal(pattern.mask(scores), expected)
    assert int(expected.sum()) == pattern.count(*scores.shape)


@given(SEEDS, FEW, FEW, FEW, FEW, st.sampled_from([1, 4]), st.data())
def test_blocks_keep_the_largest_norms(seed, tall, wide, rows, columns, taps, data):
    pattern = Blocks(tall, wide, "blocks").over(taps)
    scores = scores_of(seed, wide * rows * taps, tall * columns)
    k = data.draw(st.integers(0, scores.numel()))
    mask = pattern.mask(scores, k)
    norms = {}
    for group, j in product(groups_of(len(scores), taps, wide), range(0, tall * columns, tall)):
        block = mask[group, j : j + tall]
        assert bool(block.all()) or not bool(block.any())
        norms[float(scores[group, j : j + tall].square().sum())] = bool(block[0, 0])
    kept, gone = ([norm for norm, stays in norms.items() if stays is which] for which in (True, False))
    assert min(kept, default=9e9) >= max(gone, default=0)
    assert int(mask.sum()) == pattern.count(*scores.shape, k)
    assert len(kept) == max(min(k, 1), round(k / (tall * wide)))


@pytest.mark.parametrize(("text", "shape"), [("2:4", (4, 2)), ("1:3", (5, 2)), ("2x1", (3, 4)), ("neurons", (2, 4))])
def test_is_the_projection_of_least_distance(text, shape):
    pattern, scores = parse_pattern(text), scores_of(3, *shape)
    k = pattern.count(*shape, scores.numel() // 2)
    found = pattern.mask(scores, k)
    allowed = []
    for places in combinations(range(scores.numel()), k):
        mask = torch.zeros(scores.numel(), dtype=torch.bool)
        mask[list(places)] = True
        mask = mask.reshape(shape)
        if torch.equal(pattern.mask(mask.float(), k), mask):  # it is one of the pattern's own masks
            allowed.append(float(scores.where(mask, 0).square().sum()))
    assert len(allowed) > 1
    assert float(scores.where(found, 0).square().sum()) == pytest.approx(max(allowed))


@pytest.mark.parametrize("text", ["2:4", "3:5", "2x3", "neurons"])
def test_the_order_puts_what_is_chosen_together_side_by_side(text):
    pattern = parse_pattern(text).over(4)
    order, sizes = pattern.order(24)
    assert sorted(order.tolist()) == list(range(24))
    parts = [set(part.tolist()) for part in order.split(sizes)]
    expected = {"2:4": 4, "3:5": 5, "2x3": 3}.get(text)
    groups = [range(24)] if expected is None else groups_of(24, 4, expected)
    assert sorted(map(sorted, parts)) == sorted(map(sorted, groups))


def test_exchanges_stay_inside_a_group():
    allowed = NofM(2, 4, taps=2).exchanges(12)
    for i, j in product(range(12), range(12)):
        assert bool(allowed[i, j]) == any(i in group and j in group for group in groups_of(12, 2, 4))
    assert Blocks(2, 2, "2x2").exchanges(4) is None


def test_a_pattern_is_loosened_from_dense_to_itself():
    assert [NofM(2, 4).loosened(gone).n for gone in (0.0, 0.5, 1.0)] == [4, 3, 2]
    assert NofM(2, 4).loosened(0.0).mask(scores_of(0, 7, 3)).all()


@pytest.mark.parametrize("text", ["2:4", "1:32", "4x1", "1x4", "16x8", "neurons", "channels"])
def test_a_text_comes_back(text):
    pattern = parse_pattern(text)
    assert (str(pattern), parse_pattern(pattern), parse_pattern(None)) == (text, pattern, None)


@pytest.mark.parametrize("text", ["4:2", "4:4", "0:4", "2-4", "1x1", "0x4", "x4", "2:4:8", "rows", "", 24, 0.5])
def test_what_is_no_pattern(text):
    with pytest.raises(ConfigError, match=r"--pattern must be N:M with 0 < N < M such as '2:4', blocks .*, got"):
        parse_pattern(text, "--pattern")


@pytest.mark.parametrize("shape", [(8, 6), (6, 8)])
def test_blocks_that_do_not_fill_a_layer(shape):
    with pytest.raises(ConfigError, match=r"'4x4' must fill a layer with whole blocks, got \d outputs x \d inputs"):
        Blocks(4, 4, "4x4").count(*shape, 8)


def test_a_target_with_a_pattern():
    scores = scores_of(0, 8, 3)
    target = Sparsity(nonzeros=12, pattern=NofM(2, 4))
    assert torch.equal(target.mask(scores), NofM(2, 4).mask(scores))
    assert torch.equal(Sparsity(0.5).mask(scores), scores > scores.flatten().sort().values[11])
