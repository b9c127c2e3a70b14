"""Methods in patterns: exact counts, and the error against the best of all supports there are."""

from itertools import product

import pytest
import torch

import correlated
from correlated import problem
from feta.calibration.stream import TensorStream
from feta.patterns import parse_pattern
from feta.problem import Activation
from feta.pruners import METHODS, make
from feta.solvers.swaps import all_supports
from feta.sparsity import Sparsity

ABLE = [name for name in METHODS if make(name).needs.patterns]
CASES = {name: {} for name in ABLE} | {"feta wide": {"memory": 1e-6}, "alps exact": {"refit": "exact"}}
CASES |= {"feta best": {"quality": "best"}, "sparsegpt small": {"block": 5}, "sparsegpt bias": {"fit_bias": True}}
PATTERNS = ["2:4", "1:4", "3:8", "4x1", "1x4", "2x2", "neurons"]


def in_pattern(text, W, share=0.6, taps=1):
    pattern = parse_pattern(text).over(taps)
    kept = pattern.count(*W.shape, Sparsity(share).count(W.numel()))
    return Sparsity(nonzeros=kept, pattern=pattern)


def test_those_that_can():
    assert {"threshold", "wanda", "sparsegpt", "alps", "feta", "lobs"} == set(ABLE)


@pytest.mark.parametrize(("case", "text"), list(product(CASES, PATTERNS)))
def test_the_count_is_exact_and_the_pattern_is_kept(case, text):
    method = make(case.split()[0], CASES[case])
    for taps, bias, seed in ((1, True, 0), (2, False, 1)):
        A, W, b = correlated.layer(seed, m=90, d_in=16, d_out=8)
        target = in_pattern(text, W, taps=taps)
        U = method.prune(problem(A, W, b if bias else None), target).U
        assert int(U.count_nonzero()) == target.nonzeros
        assert torch.equal(target.mask((U != 0).float()), U != 0)


@pytest.mark.parametrize("name", ABLE)
def test_a_layer_narrower_than_m(name):
    A, W, b = correlated.layer(0, d_in=3, d_out=4)
    target = in_pattern("2:4", W)
    U = make(name).prune(problem(A, W, b), target).U
    assert target.nonzeros == 8  # two of three
    assert (U != 0).sum(0).tolist() == [2] * 4


@pytest.mark.parametrize("name", ABLE)
def test_dead_inputs_do_not_break_a_pattern(name):
    A, W, b = correlated.layer(0, m=90, d_in=16, d_out=8)
    A[:, :6] = 0
    for text in PATTERNS:
        target = in_pattern(text, W)
        U = make(name).prune(problem(A, W, b), target).U
        assert int(U.count_nonzero()) == target.nonzeros
        assert torch.equal(target.mask((U != 0).float()), U != 0)


def least_errors(A, B, supports, V, relu):
    """The least error of each output over the supports: a least squares, or rounds of them with moving targets."""
    X = torch.cat([A, A.new_ones(len(A), 1)], 1)
    least = torch.full((B.shape[1],), torch.inf, dtype=A.dtype)
    for support in supports:
        inside = X[:, [*support.nonzero()[:, 0].tolist(), -1]]
        inverse, Z = torch.linalg.pinv(inside), X @ V
        for _ in range(40 if relu else 1):
            targets = torch.where(B > 0, B, Z.clamp_max(0)) if relu else B
            Z = inside @ (inverse @ targets)
            least = torch.minimum(least, ((Z.relu() if relu else Z) - B).square().sum(0))
    return least


@pytest.mark.parametrize("activation", [Activation.LINEAR, Activation.RELU])
@pytest.mark.parametrize(("text", "d_in"), [("2:4", 8), ("2:4", 12), ("1:4", 16)])
def test_feta_is_near_the_best_of_all_supports(text, d_in, activation):
    ratios = []
    for seed in range(4):
        A, W, b = correlated.layer(seed, 150, d_in, 3)
        target, B = in_pattern(text, W), activation(A @ W + b)
        supports = all_supports(d_in)
        supports = supports[(target.pattern.mask(supports.t().float()).t() == supports).all(1)]
        found = make("feta").prune(problem(A, W, b, activation), target)
        error = (activation(A @ found.U + found.bias) - B).square().sum()
        best = least_errors(A, B, supports, torch.cat([W, b[None]]), activation is Activation.RELU).sum()
        ratios.append(float(error / best))
    assert sum(ratios) / len(ratios) <= 1.05


@pytest.mark.parametrize("text", ["4x1", "neurons"])
def test_feta_is_near_the_best_of_all_blocks(text):
    """Every choice of blocks, refitted by least squares."""
    A, W, b = correlated.layer(1, 150, 4, 8)
    B, target, pattern = A @ W + b, in_pattern(text, W, 0.5), parse_pattern(text)
    found = make("feta").prune(problem(A, W, b, Activation.LINEAR), target)
    masks = []
    for chosen in product((0.0, 1.0), repeat=8):
        scores = torch.tensor(chosen).reshape(1, 8) if text == "neurons" else torch.tensor(chosen).reshape(4, 2)
        mask = scores.expand(4, 8) > 0 if text == "neurons" else scores.repeat_interleave(4, 1) > 0
        if int(mask.sum()) == target.nonzeros:
            assert torch.equal(pattern.mask(mask.float(), target.nonzeros), mask)
            masks.append(mask)
    V, linear = torch.cat([W, b[None]]), False
    errors = [
        sum(float(least_errors(A, B[:, [j]], mask[:, j][None], V[:, [j]], linear)[0]) for j in range(8))
        for mask in masks
    ]
    assert len(errors) == 70
    assert float((A @ found.U + found.bias - B).square().sum()) <= 1.05 * min(errors)


def test_sparsegpt_in_n_of_m_is_the_sweep_of_the_paper():
    """Input by input with the exact inverse of what is left; each group chooses when its first input comes."""
    A, W, b = correlated.layer(0, d_in=12)
    H = A.t() @ A
    H.diagonal().add_(0.01 * H.diagonal().mean())
    expected = W.clone()
    for j in range(12):
        if j % 4 == 0:
            left = torch.stack([torch.linalg.inv(H[i:, i:])[0, 0] for i in range(j, j + 4)])
            mask = parse_pattern("2:4").mask((expected[j : j + 4].square() / left[:, None]).sqrt(), 0)
        inverse = torch.linalg.inv(H[j:, j:])
        error = expected[j].where(~mask[j % 4], 0) / inverse[0, 0]
        expected[j:] -= torch.outer(inverse[0], error)
        expected[j] = expected[j].where(mask[j % 4], 0)
    found = make("sparsegpt").prune(problem(A, W, b), in_pattern("2:4", W)).U
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_a_kernel_is_swept_as_its_reordered_matrix():
    """Taps only say which inputs lie together: in that order the layer is a plain one."""
    A, W, b = correlated.layer(0, m=90, d_in=16, d_out=8)
    order, _ = parse_pattern("2:4").over(2).order(16)
    for name in ABLE:
        found = make(name).prune(problem(A, W, b), in_pattern("2:4", W, taps=2))
        plain = make(name).prune(problem(A[:, order], W[order], b), in_pattern("2:4", W))
        assert torch.equal(found.U[order] != 0, plain.U != 0)
        torch.testing.assert_close(found.U[order], plain.U, rtol=1e-4, atol=1e-6)


def test_float32_and_many_chunks():
    A, W, b = (part.float() for part in correlated.layer(0, m=90, d_in=16, d_out=8))
    given = problem(A, W, b)
    assert isinstance(given.stream, TensorStream)
    for name, text in product(ABLE, PATTERNS):
        target = in_pattern(text, W)
        U = make(name).prune(given, target).U
        assert U.dtype is torch.float32
        assert torch.equal(target.mask((U != 0).float()), U != 0)
