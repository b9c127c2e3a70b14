"""The theorems against numbers worked out by hand, slow references, and the margins that really are there."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from feta.certificates.chain import chain_of
from feta.errors import ConfigError, ModelError
from feta.theory.perturbation import blend, log_product, measure
from feta.theory.robustness import Manifold, Setting
from feta.theory.theorems import all_layers, by_itself, every_bound, lemma_applies, one_layer, three_steps

SETTING = Setting(Manifold(2.0, 3.0), classes=2, samples=50, delta=0.1)


def linear(rows, bias=(0.0,)) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows)).double()
    layer.weight.data = torch.as_tensor(rows, dtype=torch.float64)
    layer.bias.data = torch.tensor(bias, dtype=torch.float64).expand(len(rows)).clone()
    return layer


def diagonal(*values: float) -> nn.Linear:
    return linear(torch.diag(torch.tensor(values, dtype=torch.float64)))


def tiny(first, second) -> nn.Module:
    return nn.Sequential(diagonal(*first), nn.ReLU(), diagonal(*second))


def compare(dense, pruned, x):
    return measure(chain_of(dense, x), chain_of(pruned, x), [x])


def random_pair(seed: int, scale: float, widths=(3, 8, 6, 4), samples: int = 20):
    """A dense network, one with all layers changed (biases too), and inputs."""
    generator = torch.Generator().manual_seed(seed)

    def network() -> nn.Sequential:
        layers = []
        for a, b in pairwise(widths):
            layer = nn.Linear(a, b).double()
            nn.init.normal_(layer.weight, std=a**-0.5, generator=generator)
            nn.init.normal_(layer.bias, std=0.1, generator=generator)
            layers += [layer, nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    dense, pruned = network(), network()
    for a, b in zip(dense.parameters(), pruned.parameters(), strict=True):
        b.data = a.data + scale * b.data
    return dense, pruned, torch.randn(samples, widths[0], generator=generator, dtype=torch.float64)


# By hand: f(x) = diag(1, 3) relu(diag(2, 1) x), one sample (3, 1): hidden (6, 1), outputs (6, 3), gap 3.
DENSE = tiny((2, 1), (1, 3))
X = torch.tensor([[3.0, 1.0]], dtype=torch.float64)


def test_one_layer_by_hand():
    """First layer diag(1.9, 1): C1 = 0.3, behind it ‖W‖ = 3; in all 2 · 3."""
    seen = compare(DENSE, tiny((1.9, 1), (1, 3)), X)
    layer = seen.layers[0]
    assert layer.largest_error == pytest.approx(0.3)
    paper = one_layer(seen, layer, SETTING, "paper")
    gamma, lost = math.sqrt(2) * 3 / 6, 0.3 * 3 / 6
    A, B = math.sqrt(math.log(2) * 2 * 2**3 * 3**2 / 50), math.sqrt(2 * math.log(10) / 50)
    assert math.exp(paper.log_gamma) == pytest.approx(gamma)
    assert math.exp(paper.log_lost) == pytest.approx(lost / gamma)
    assert math.exp(paper.log_margin) == pytest.approx(gamma - lost)
    assert math.exp(paper.log_bound) == pytest.approx(A * (gamma - lost) ** -1 + B)
    sound = one_layer(seen, layer, SETTING, "sound")
    left = (3 / math.sqrt(2) - 0.3 * 3) / (1.9 * 3)  # 0.2143, rounded down to 1/8: z = -3
    assert math.exp(sound.log_margin) == pytest.approx(left)
    cells, confidence = 2 * (2 * 3 / (1 / 8)) ** 2, 10 * 2 * 4 * 5
    expected = math.sqrt((2 * cells * math.log(2) + 2 * math.log(confidence)) / 50)
    assert math.exp(sound.log_bound) == pytest.approx(expected)
    # The second layer is not pruned: nothing is lost, and the bound is that of the dense network.
    same = one_layer(seen, seen.layers[1], SETTING, "paper")
    assert same.log_lost == -math.inf
    assert same.log_bound == by_itself(seen, SETTING, "paper", "dense").log_bound


def test_all_layers_by_hand():
    """H = diag(0, 0.001) and diag(0.002, 0): ratios 0.001 / 2 and 0.002 / 3, D² = 10."""
    seen = compare(DENSE, tiny((2, 1.001), (1.002, 3)), X)
    paper = all_layers(seen, SETTING, "paper")
    lost = math.e * 10 * (0.001 / 2 + 0.002 / 3)
    gamma = math.sqrt(2) * 3 / 6
    assert math.exp(paper.log_margin) == pytest.approx(gamma - lost)
    sound = all_layers(seen, SETTING, "sound")
    # Errors 0.001 and 0.002 · 6 on dense inputs, behind them 3 and 1; Lipschitz constant 2 · 3.
    left = (3 / math.sqrt(2) - (0.001 * 3 + 0.012)) / 6
    assert math.exp(sound.log_margin) == pytest.approx(left)
    assert lemma_applies(seen.layers)
    assert not lemma_applies(compare(DENSE, tiny((0.9, 1), (1, 3)), X).layers)


@pytest.mark.parametrize(
    ("pruned", "x", "margin", "of_dense"),
    [
        (tiny((1, 1), (1, 2)), X, 1 / 2, 3 / 6),  # outputs (3, 2), norms 1 and 2
        # f(x) = x: from (1, 0) the boundary is 1/sqrt(2) away. The printed score is twice too long.
        (tiny((1, 1), (1, 1)), torch.tensor([[1.0, 0.0]]), 1, 2 / 6),
    ],
)
def test_a_network_by_itself_by_hand(pruned, x, margin, of_dense):
    seen = compare(DENSE, pruned, x)
    for found, expected in (
        (by_itself(seen, SETTING, "paper"), math.sqrt(2) * margin),
        (by_itself(seen, SETTING, "sound"), margin / math.sqrt(2)),
        (by_itself(seen, SETTING, "sound", "dense"), of_dense / math.sqrt(2)),
    ):
        assert math.exp(found.log_margin) == pytest.approx(expected)


# References


@pytest.mark.parametrize("seed", range(6))
def test_against_plain_arithmetic(seed):
    dense, pruned, x = random_pair(seed, 1e-4)
    seen = compare(dense, pruned, x)
    W, U = dense[::2], pruned[::2]
    norms, pruned_norms = ([torch.linalg.svdvals(layer.weight)[0].item() for layer in net] for net in (W, U))
    changes = [torch.linalg.svdvals(u.weight - w.weight)[0].item() for w, u in zip(W, U, strict=True)]
    a, errors = x, []
    for w, u in zip(W, U, strict=True):
        z, y = (layer(a) if w is W[-1] else layer(a).relu() for layer in (w, u))
        errors.append((z - y).norm(dim=1).detach())
        a = z
    top = a.detach().topk(2, dim=1).values
    gap = top[:, 0] - top[:, 1]

    def agrees(bound, left):
        assert (bound.log_margin is not None) == (left > 0)
        if left > 0:
            assert math.exp(bound.log_margin) == pytest.approx(left, rel=1e-6)

    for i, layer in enumerate(seen.layers):
        behind = math.prod(norms[i + 1 :])
        left = (math.sqrt(2) * gap.min().item() - errors[i].max().item() * behind) / math.prod(norms)
        agrees(one_layer(seen, layer, SETTING, "paper"), left)
        changed = math.prod(norms) / norms[i] * pruned_norms[i]
        left = (gap / math.sqrt(2) - errors[i] * behind).min().item() / changed
        agrees(one_layer(seen, layer, SETTING, "sound"), left)
    D = x.norm(dim=1).max().item()
    lost = math.e * D**2 * sum(h / w for h, w in zip(changes, norms, strict=True))
    agrees(all_layers(seen, SETTING, "paper"), math.sqrt(2) * gap.min().item() / math.prod(norms) - lost)
    lost = sum(e * math.prod(pruned_norms[i + 1 :]) for i, e in enumerate(errors))
    bound = all_layers(seen, SETTING, "sound")
    agrees(bound, (gap / math.sqrt(2) - lost).min().item() / math.prod(pruned_norms))
    assert bound.kept == pytest.approx((gap / math.sqrt(2) > lost).double().mean().item())


@pytest.mark.parametrize("seed", range(4))
def test_no_point_within_the_sound_margin_changes_class(seed):
    """Random and gradient search in the ball around the samples that are nearest to a boundary."""
    dense, pruned, x = random_pair(seed, 1e-5, samples=8)
    seen = compare(dense, pruned, x)
    bound = all_layers(seen, SETTING, "sound")
    assert bound.log_margin is not None, "the case must have something to test"
    assert seen.agree == len(x)  # a positive margin means unchanged classes
    radius = math.exp(bound.log_margin)
    generator = torch.Generator().manual_seed(seed)
    classes = pruned(x).argmax(1)
    steps = torch.randn(400, *x.shape, generator=generator, dtype=torch.float64)
    steps = radius * steps / steps.norm(dim=2, keepdim=True)
    assert (pruned(x + steps).argmax(2) == classes).all()
    point = x.clone().requires_grad_()
    top = pruned(point).topk(2, dim=1).values
    (gradient,) = torch.autograd.grad((top[:, 0] - top[:, 1]).sum(), point)
    worst = x - radius * gradient / gradient.norm(dim=1, keepdim=True).clamp_min(1e-12)  # dead ReLUs: no slope
    assert (pruned(worst).argmax(1) == classes).all()


def test_shifts_are_proven_from_errors():
    """Convolutions, overlapping pools and biases counted."""
    torch.manual_seed(0)
    x = torch.randn(30, 2, 8, 8)

    def network():
        first = nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=1)
        second = nn.Conv2d(6, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4), nn.AvgPool2d(2, 1)
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(4, 3))

    seen = compare(network(), network(), x)
    assert (seen.shifts <= seen.log_shifts.exp()).all()
    assert float(seen.shifts.min()) > 0
    conv = seen.layers[0]
    assert conv.dense.matrix_norm < conv.dense.norm.value
    behind = [stage.lipschitz for stage in seen.dense.stages[1:]]
    assert behind[:2] == [1, 3]  # the ReLU, and pixels that are in nine windows
    assert log_product(conv.behind, "sound") == pytest.approx(math.log(math.prod(behind)))


# Properties


@pytest.mark.parametrize("form", ["paper", "sound"])
@pytest.mark.parametrize("theorem", ["5.1", "5.2"])
def test_a_larger_change_never_gives_a_smaller_loss(theorem, form):
    dense, pruned, x = random_pair(3, 0.02)
    ends = chain_of(dense, x), chain_of(pruned, x)
    lost, bounds = [], []
    for share in (0.0, 0.01, 0.03, 0.1, 0.3, 1.0):
        seen = measure(ends[0], blend(*ends, share), [x])
        first, *_, every, _, _ = every_bound(seen, SETTING, form)
        bound = first if theorem == "5.1" else every
        lost.append(bound.log_lost)
        bounds.append(math.inf if bound.log_bound is None else bound.log_bound)
    assert lost[0] == -math.inf
    assert all(a < b for a, b in pairwise(lost))
    assert all(a <= b for a, b in pairwise(bounds))
    assert bounds[0] < math.inf


def test_deep_and_wide_networks_do_not_overflow():
    """Eighty layers of norm 1e10 in a direction the samples never take: a product of 1e800, outputs of size 1."""

    def network(kept: float) -> nn.Module:
        layers = [layer for _ in range(80) for layer in (diagonal(*[kept] * 59, 1e10), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    x = torch.rand(5, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, -1] = 0
    seen = compare(network(1.0), network(0.99), x)
    setting = Setting(Manifold(3000.0, 1e6), 60, 5)
    assert log_product(seen.layers[0].behind, "sound") == pytest.approx(790 * math.log(10))
    for form in ("paper", "sound"):
        own = by_itself(seen, setting, form, "dense")
        assert own.vacuous
        assert 1.2e6 < own.exponent < 1.3e6  # (1e6 · 1e800)^1500
        bound = all_layers(seen, setting, form)
        assert (bound.log_bound, bound.vacuous, bound.kept) == (None, True, 0)
        assert 700 < bound.log_lost / math.log(10) < 900
        for layer in seen.layers:
            assert math.isfinite(one_layer(seen, layer, setting, form).log_lost)


@pytest.mark.parametrize("form", ["paper", "sound"])
def test_ties_and_zeros(form):
    flat = nn.Sequential(diagonal(1, 1), nn.ReLU(), linear([[1, 1], [1, 1]]))  # both outputs equal: no margin
    seen = compare(flat, DENSE, X)
    assert (all_layers(seen, SETTING, form).log_bound, all_layers(seen, SETTING, form).kept) == (None, 0)
    assert by_itself(seen, SETTING, form, "dense").log_bound is None
    bound = all_layers(compare(DENSE, tiny((0, 0), (1, 3)), X), SETTING, form)
    assert (bound.log_margin, bound.vacuous) == (None, True)
    assert not math.isnan(bound.log_lost)


def test_a_constant_network_that_is_never_in_doubt():
    """An infinite margin leaves one cell per class."""
    constant = nn.Sequential(linear([[0, 0], [0, 0]], (5.0, 0.0)))
    own = by_itself(compare(constant, constant, X), SETTING, "sound")
    assert own.log_margin == math.inf
    assert math.isfinite(own.log_bound)


# The three-step procedure: how far a margin carries, and where it ends

STEPS = torch.tensor([[0.1, 0.0], [0.0, 0.2]], dtype=torch.float64)
WALK = Setting(Manifold(2.0, 1.0), 2, 2)


def chain(first: float, second: float):
    return chain_of(nn.Sequential(diagonal(first, second)), STEPS)


def test_a_small_change_arrives_at_once():
    walk = three_steps(chain(1, 1), chain(1, 0.9), [STEPS], WALK, labels=torch.tensor([0, 0]))
    assert (walk.arrived, walk.log_needed) == (True, 0)
    assert [(start.at, start.accuracy) for start in walk.starts] == [(0, 50)]
    assert walk.bound == all_layers(measure(chain(1, 1), chain(1, 0.9), [STEPS]), WALK, "paper")


def test_a_larger_change_needs_more_starts():
    """γ = sqrt(2) · 0.1, loss e · 0.2² · ‖H‖: with ‖H‖ = 3 the margin is gone at sqrt(2) / (e · 0.4 · 3)."""
    dense, pruned = chain(1, 1), chain(1, 4)
    walk = three_steps(dense, pruned, [STEPS], WALK, max_starts=20)
    first, second = walk.starts[:2]
    assert first.accuracy is None
    assert second.at == pytest.approx(math.sqrt(2) * 0.1 / (math.e * 0.04 * 3))
    assert math.exp(first.log_reach) == pytest.approx(second.at)
    assert walk.arrived
    assert 1 < len(walk.starts) < 20
    assert walk.log_needed == pytest.approx(math.log(len(walk.starts)))
    last = blend(dense, pruned, walk.starts[-1].at)
    assert walk.bound == all_layers(measure(last, pruned, [STEPS]), WALK, "paper")


def test_what_is_out_of_reach_is_said():
    far = three_steps(chain(1, 1), chain(1, 1e6), [STEPS], WALK, max_starts=3)
    assert (far.arrived, far.bound, len(far.starts)) == (False, None, 3)
    assert far.log_needed > math.log(1e4)
    assert 0 < far.starts[1].at < far.starts[2].at < 1e-3
    tie = three_steps(chain(0, 0), chain(1, 2), [STEPS], WALK)  # no margin, so a step of zero and no second start
    assert (tie.arrived, tie.log_needed, len(tie.starts)) == (False, math.inf, 1)


WIDE, NARROW = (
    nn.Sequential(nn.Conv2d(1, 2, k, padding=k // 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()) for k in (3, 1)
)
ONE = nn.Sequential(linear([[1, 0]]))


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (lambda: measure(chain_of(DENSE, X), chain_of(DENSE, X), []), ConfigError, "at least one sample"),
        (lambda: three_steps(chain(1, 1), chain(1, 1), [STEPS], WALK, max_starts=0), ConfigError, "max_starts .* 0"),
        (lambda: compare(DENSE, nn.Sequential(diagonal(1, 1)), X), ModelError, "alike but for their weights"),
        (lambda: compare(WIDE, NARROW, torch.ones(1, 1, 2, 2)), ModelError, "alike but for their weights"),
        (lambda: compare(ONE, ONE, X), ModelError, r"scores of two or more classes, got shape \(1,\)"),
    ],
)
def test_bad_input(ask, error, words):
    with pytest.raises(error, match=words):
        ask()
