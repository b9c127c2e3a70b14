"""The local bounds: sound on every architecture, at least as tight as plain CROWN, exact where they can be."""

import numpy as np
import pytest
import torch
from torch import nn

from feta.certificates.chain import chain_of
from feta.certificates.radius import global_radius
from feta.certificates.relaxation import Relaxation, envelope
from feta.certificates.rounding import Rounding
from feta.certificates.stages import MaxPool, ReLU

INPUT = (2, 6, 6)


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Flatten(), nn.Linear(72, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))
    first = nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(6, 8, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
    conv = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32, 10), nn.ReLU(), nn.Linear(10, 5))
    grouped = nn.Conv2d(2, 6, 3, stride=2, groups=2, bias=False), nn.BatchNorm2d(6), nn.ReLU()
    mean = nn.AvgPool2d(2, stride=1, padding=1), nn.Conv2d(6, 5, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    norm = nn.Sequential(*grouped, *mean, nn.Flatten())
    norm(torch.randn(50, *INPUT))  # running statistics that differ from 0 and 1
    pool_first = nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 5))
    return {"dense": dense, "conv": conv, "norm": norm, "pool first": pool_first}


NETWORKS = {name: model.eval() for name, model in networks().items()}


def samples(model: nn.Module, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, their classes, and which scores are of another class."""
    x = torch.randn(count, *INPUT, generator=torch.Generator().manual_seed(1))
    classes = model(x).argmax(1)
    return x, classes, nn.functional.one_hot(classes, 5) == 0


def relaxation(name: str, **options) -> Relaxation:
    model = NETWORKS[name]
    return Relaxation(chain_of(model, torch.ones(2, *INPUT)), Rounding.of(model), **options)


def smallest_seen(model: nn.Module, x: torch.Tensor, classes: torch.Tensor, radius: float, norm: str) -> torch.Tensor:
    """The smallest f_c - f_j over random points, corners and gradient steps in the ball, for each j."""
    generator = torch.Generator().manual_seed(2)
    seen = torch.full((len(x), 5), float("inf"))
    for target in range(5):
        for start in range(3):
            away = torch.randn(x.shape, generator=generator)
            for _ in range(6):
                point = (x + _scaled(away, radius * 0.999999, norm)).requires_grad_()
                scores = model(point)
                lead = scores.gather(1, classes[:, None]) - scores
                seen = torch.minimum(seen, lead.detach())
                (gradient,) = torch.autograd.grad(lead[:, target].sum(), point)
                away = -gradient if start else torch.randn(x.shape, generator=generator)
    return seen


def _scaled(away: torch.Tensor, radius: float, norm: str) -> torch.Tensor:
    if norm == "linf":
        return radius * away.sign()
    return radius * away / away.flatten(1).norm(dim=1).clamp_min(1e-30).view(-1, 1, 1, 1)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_no_point_of_the_ball_lies_below_the_bound(name, norm):
    model = NETWORKS[name]
    x, classes, others = samples(model, 6)
    relaxed = [relaxation(name, norm=norm, refined=refined) for refined in (0, 7, 1000)]
    for radius in (0.003, 0.1, 1.0) if norm == "l2" else (0.0005, 0.02, 0.2):
        seen = smallest_seen(model, x, classes, radius, norm)
        for one in relaxed:
            bound = one.margins(x, classes, torch.full((6,), radius))
            assert (bound[others] <= seen[others]).all()
            assert (bound[~others] == float("inf")).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_tiny_ball_loses_next_to_nothing(name):
    """So the bounds above hold not because they are far away."""
    x, classes, others = samples(NETWORKS[name], 6)
    bound = relaxation(name).margins(x, classes, torch.full((6,), 1e-9))
    scores = relaxation(name).chain.apply(x)
    exact = scores.gather(1, classes[:, None]) - scores
    torch.testing.assert_close(bound.masked_fill(~others, 0), exact, atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", ["dense", "conv"])
def test_more_work_gives_more(name):
    """On the whole: a smaller box may choose another line below a ReLU, which need not suit every margin."""
    x, classes, others = samples(NETWORKS[name], 6)
    ball = torch.full((6,), 0.3)
    none, some, every = (relaxation(name, refined=r).margins(x, classes, ball)[others].mean() for r in (0, 3, 999))
    assert none < some < every
    # Memory is how much is done at once, not what is found.
    split = relaxation(name, refined=999, memory=1).margins(x, classes, ball)
    torch.testing.assert_close(split[others].mean(), every)


def test_samples_do_not_touch_each_other():
    x, classes, _ = samples(NETWORKS["conv"], 6)
    radius = torch.tensor([0.01, 0.05, 0.1, 0.2, 0.4, 0.8])
    whole = relaxation("conv", refined=1000).margins(x, classes, radius)
    for row in range(6):
        one = slice(row, row + 1)
        alone = relaxation("conv", refined=1000).margins(x[one], classes[one], radius[one])
        torch.testing.assert_close(alone, whole[one])


def crown(weights, biases, x, radius, c, j):
    """Plain CROWN in float64, one margin, loops over layers and units: Zhang et al. 2018 with adaptive slopes."""

    def substitute(row, constant, layer, boxes):
        """A lower bound of row @ z_layer + constant, z the values before the ReLU of `layer`."""
        while layer > 0:
            constant += row @ biases[layer]
            row = row @ weights[layer]
            layer -= 1
            low, high = boxes[layer]
            for unit in range(len(row)):
                least, most = low[unit], high[unit]
                if most <= 0:
                    row[unit] = 0.0
                elif least < 0:
                    if row[unit] >= 0:
                        row[unit] *= 1.0 if most > -least else 0.0
                    else:
                        constant += row[unit] * -least * most / (most - least)
                        row[unit] *= most / (most - least)
        constant += row @ biases[0]
        row = row @ weights[0]
        return row @ x + constant - radius * np.sqrt(row @ row)

    boxes: list[tuple[np.ndarray, np.ndarray]] = []
    for layer in range(len(weights) - 1):
        eye = np.eye(len(biases[layer]))
        low = np.array([substitute(row.copy(), 0.0, layer, boxes) for row in eye])
        high = np.array([-substitute(-row, 0.0, layer, boxes) for row in eye])
        boxes.append((low, high))
    last = np.zeros(len(biases[-1]))
    last[c], last[j] = 1.0, -1.0
    return substitute(last, 0.0, len(weights) - 1, boxes)


@pytest.mark.parametrize("radius", [0.05, 0.4, 1.5])
def test_it_is_plain_crown_or_tighter(radius):
    model = NETWORKS["dense"]
    x, classes, others = samples(model, 3)
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    weights = [layer.weight.detach().double().numpy() for layer in layers]
    biases = [layer.bias.detach().double().numpy() for layer in layers]
    bound = relaxation("dense", refined=1000).margins(x, classes, torch.full((3,), radius))
    for row, j in others.nonzero().tolist():
        slow = crown(weights, biases, x[row].flatten().double().numpy(), radius, classes[row], j)
        # Never below it but for rounding; and near it: both relax the same ReLUs.
        assert slow - 1e-3 <= bound[row, j] <= slow + 0.5 * max(abs(slow), 0.2)


def test_a_linear_network_is_exact():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 5))
    x, classes, others = samples(model, 4)
    bound = Relaxation(chain_of(model, x)).margins(x, classes, torch.full((4,), 0.3))
    W, scores = model[1].weight.detach().double(), model(x).detach().double()
    exact = scores.gather(1, classes[:, None]) - scores - 0.3 * (W[classes][:, None] - W[None]).norm(dim=2)
    torch.testing.assert_close(bound[others], exact[others], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["dense", "conv"])
def test_it_certifies_what_the_global_form_does(name):
    x, classes, _ = samples(NETWORKS[name], 20)
    relaxed = relaxation(name)
    radius = global_radius(relaxed.chain, x, classes, relaxed.rounding)
    some = radius > 1e-4
    assert some.sum() > 10
    assert relaxed.certified(x[some], classes[some], 0.99 * radius[some]).all()


# Envelopes: below and above their function on every point of the box, tight at the ends, rows moved rightly

POOLS = [
    nn.MaxPool2d(2),
    nn.MaxPool2d(3, stride=2, padding=1),
    nn.MaxPool2d(2, stride=1),
    nn.MaxPool2d((3, 2), stride=(2, 3), padding=(1, 0)),
    nn.MaxPool2d(2, dilation=2, stride=1),
    nn.MaxPool2d(3, stride=2, ceil_mode=True),
    nn.MaxPool2d(1),
]


def box(generator, *shape):
    middle = torch.randn(*shape, generator=generator, dtype=torch.float64)
    half = torch.rand(*shape, generator=generator, dtype=torch.float64)
    half = half * torch.randint(0, 2, shape, generator=generator)  # some are points
    return middle - half, middle + half


@pytest.mark.parametrize("bend", [nn.ReLU(), *POOLS], ids=str)
def test_envelopes_hold(bend):
    """<rows, f(x)> >= <rows', x> + constant for random rows and points of the box, corners among them."""
    generator = torch.Generator().manual_seed(1)
    low, high = box(generator, 2, 3, 7, 8)
    shapes = (3, 7, 8), tuple(bend(low).shape[1:])
    stage = MaxPool("pool", *shapes, bend) if isinstance(bend, nn.MaxPool2d) else ReLU("relu", *shapes)
    rows = torch.randn(2, 5, *shapes[1], generator=generator, dtype=torch.float64)
    moved, constant = envelope(stage, low, high)(rows)
    assert moved.shape == (2, 5, 3, 7, 8)
    for _ in range(40):
        share = torch.rand(low.shape, generator=generator, dtype=torch.float64)
        ends = torch.randint(0, 3, low.shape, generator=generator)
        x = low + (high - low) * torch.where(ends == 2, share, ends.double())
        value = (rows * bend(x)[:, None]).flatten(2).sum(2)
        assert (value - (moved * x[:, None]).flatten(2).sum(2) - constant).min() >= -1e-12


@pytest.mark.parametrize(
    ("low", "high", "lower", "upper", "offset"),
    [
        (-1.0, 3.0, 1, 0.75, 0.75),  # the chord meets max(x, 0) at both ends
        (-3.0, 1.0, 0, 0.25, 0.75),
        (1.0, 2.0, 1, 1, 0),  # decided: both lines are the function
        (-2.0, 0.0, 0, 0, 0),
        (-2.0, -2.0, 0, 0, 0),
    ],
)
def test_relu_by_hand(low, high, lower, upper, offset):
    ends = (torch.tensor([[end]], dtype=torch.float64) for end in (low, high))
    back = envelope(ReLU("relu", (1,), (1,)), *ends)
    sides = (back(torch.full((1, 1, 1), sign, dtype=torch.float64)) for sign in (1.0, -1.0))
    assert [(row.item(), added.item()) for row, added in sides] == [(lower, 0), (-upper, -offset)]


@pytest.mark.parametrize(
    ("low", "high", "rows", "constant"),
    [
        ([5.0, 0.0, 1.0], [6.0, 4.0, 5.0], [-1, 0, 0], 0),  # certain to win: exact
        ([0.0, -1.0, -2.0], [4.0, 1.0, 0.0], [-0.75, 0, 0], -1),  # under the chord from (0, 1) to (4, 4)
        ([-torch.inf] * 3, [4.0, 1.0, 0.0], [0, 0, 0], -4),  # nothing known from below: under the largest
    ],
)
def test_windows_by_hand(low, high, rows, constant):
    low, high = (torch.tensor(ends, dtype=torch.float64).view(1, 1, 1, 3) for ends in (low, high))
    pool = nn.MaxPool2d((1, 4), padding=(0, 1))  # padding, three pixels
    back = envelope(MaxPool("pool", (1, 1, 3), (1, 1, 1), pool), low, high)
    moved, added = back(-torch.ones(1, 1, 1, 1, 1, dtype=torch.float64))
    assert moved.flatten().tolist() == rows
    assert added.item() == pytest.approx(constant)
