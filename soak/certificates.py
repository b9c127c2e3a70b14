"""Certificates under attack: random small networks, pruned by every method, and inputs sought in each certified ball.

One input in a certified ball with another class, or without one (scores that are not finite), is a wrong certificate.
The networks are those that are hard to certify soundly: padding, dilation and ceil_mode in the pools, batch-norm with
extreme statistics, weights of very large and very small size, layers that say nothing.
"""

import random
import warnings
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import feta
from feta.certificates.attack import Attack
from feta.certificates.certificate import Certificate
from feta.pruners import METHODS
from soak.tally import Tally

COUNT = 100_000
SAMPLES = 150  # of each network
ATTACK = Attack(points=8, restarts=1, steps=8, beyond=())
CORNERS = 6


@dataclass
class Case:
    """A network, how it is pruned, and the samples to certify."""

    dense: nn.Module
    inputs: Tensor
    method: str
    sparsity: float
    norm: str
    said: str

    def pruned(self) -> nn.Module:
        short = {"net-trim": {"iterations": 20, "search_steps": 2}, "feta-svrg": {"outer": 1, "search_steps": 3}}
        modules = self.dense.named_modules()
        layers = [name for name, module in modules if isinstance(module, nn.Linear | nn.Conv2d)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of layers that are poor: they must be certified as they are
            options = short.get(self.method)
            return feta.prune(
                self.dense, self.inputs[:30], self.sparsity, self.method, layers=layers, options=options
            ).model

    def certify(self, pruned: nn.Module) -> Certificate:
        return feta.certify(
            self.dense, pruned, self.inputs, samples=SAMPLES, norm=self.norm, refined=24, attack=ATTACK
        )


def drawn(seed: int, number: int) -> Case:
    """The case of this number, the same each time."""
    pick = random.Random(f"{seed}/{number}")
    torch.manual_seed(pick.getrandbits(40))
    dense, shape, kind = (_images if pick.random() < 0.6 else _vectors)(pick)
    inputs = torch.randn(SAMPLES, *shape) * 10.0 ** pick.choice((0, 0, 0, -6, 4))
    method, sparsity = pick.choice(list(METHODS)), pick.choice((0.3, 0.5, 0.8, 0.95))
    norm = pick.choice(("l2", "l2", "linf"))
    return Case(dense, inputs, method, sparsity, norm, f"{kind}, {method} at {sparsity}, {norm}")


def _vectors(pick: random.Random) -> tuple[nn.Module, tuple[int, ...], str]:
    widths = [pick.choice((1, 2, 5, 9)) for _ in range(pick.choice((2, 3, 4)))]
    parts, said = list[nn.Module](), "dense"
    for before, after in zip(widths, [*widths[1:], pick.choice((2, 3, 5))], strict=True):
        parts += [_sized(nn.Linear(before, after, bias=pick.random() < 0.7), pick)]
        if after != before or pick.random() < 0.7:
            parts += [*_norm(nn.BatchNorm1d(after), pick), nn.ReLU(inplace=pick.random() < 0.5)]
    return nn.Sequential(*_ended(parts)).eval(), (widths[0],), said


def _images(pick: random.Random) -> tuple[nn.Module, tuple[int, ...], str]:
    size, channels = pick.choice((8, 9)), pick.choice((1, 2))
    parts, now = list[nn.Module](), channels
    for _ in range(pick.choice((1, 2))):
        after, kernel = pick.choice((1, 2, 4)), pick.choice((1, 2, 2))
        mode = pick.choice(("zeros", "zeros", "reflect", "circular"))
        conv = nn.Conv2d(now, after, kernel, 1, pick.choice((0, kernel // 2)), padding_mode=mode)
        block = [_sized(conv, pick), *_norm(nn.BatchNorm2d(after), pick)]
        block += [nn.ReLU(), _pool(pick)] if pick.random() < 0.5 else [_pool(pick), nn.ReLU()]
        try:
            nn.Sequential(*parts, *block).eval()(torch.zeros(1, channels, size, size))
        except RuntimeError:
            break  # too little of the image was left for this block
        parts, now = parts + block, after
    parts.append(nn.Flatten())
    body = nn.Sequential(*parts).eval()
    width = body(torch.zeros(1, channels, size, size)).shape[1]
    parts += _ended([_sized(nn.Linear(width, pick.choice((2, 3, 6))), pick)])
    said = "conv " + ", ".join(str(part) for part in parts if "Pool" in str(part))
    return nn.Sequential(*parts).eval(), (channels, size, size), said


def _pool(pick: random.Random) -> nn.Module:
    kernel = pick.choice((2, 3))
    if pick.random() < 0.7:
        dilation = pick.choice((1, 1, 2)) if kernel == 2 else 1
        padding = pick.choice((0, kernel // 2))
        return nn.MaxPool2d(kernel, pick.choice((1, 2)), padding, dilation, ceil_mode=pick.random() < 0.3)
    return nn.AvgPool2d(kernel, pick.choice((1, 2)), pick.choice((0, kernel // 2)), pick.random() < 0.3)


def _sized(layer: nn.Module, pick: random.Random) -> nn.Module:
    """Weights of ordinary, extreme or no size, or some of them gone."""
    kind = pick.choice(
        ("plain", "plain", "plain", "plain", "plain", "large", "tiny", "dead", "dead outputs", "negative bias")
    )
    with torch.no_grad():
        if kind in ("large", "tiny"):
            layer.weight *= 10.0 ** pick.choice((3, 8, 15, 30) if kind == "large" else (-3, -8, -20, -36))
        elif kind == "dead":
            layer.weight.zero_()
        elif kind == "dead outputs":
            layer.weight[::2] = 0
        elif layer.bias is not None and kind == "negative bias":
            layer.bias -= 5
    return layer


def _norm(norm: nn.Module, pick: random.Random) -> list[nn.Module]:
    if pick.random() < 0.5:
        return []
    norm.running_mean.normal_().mul_(10.0 ** pick.choice((0, 0, 3, 20, 37)))
    norm.running_var.uniform_().mul_(10.0 ** pick.choice((0, 0, -12, 12, 30, 37)))
    norm.weight.data.normal_().mul_(10.0 ** pick.choice((0, 0, -20, 10)))
    norm.bias.data.normal_()
    if pick.random() < 0.2:
        norm.weight.data.zero_()
    norm.eps = pick.choice((1e-5, 1e-5, 1e-30))
    return [norm]


def _ended(parts: list[nn.Module]) -> list[nn.Module]:
    """Scores: a network does not end in a ReLU, where two classes are often equal."""
    return parts[:-1] if isinstance(parts[-1], nn.ReLU) else parts


@torch.no_grad()
def fooled(case: Case, pruned: nn.Module, radius: Tensor, classes: Tensor) -> Tensor:
    """(n,) bool: an input at the edge of the ball, at random or in a corner, has another class or none."""
    x, found = case.inputs.double(), torch.zeros(len(radius), dtype=torch.bool)
    generator = torch.Generator().manual_seed(1)
    wide = radius.view(-1, *[1] * (x.ndim - 1)) * (1 - 1e-6)
    for number in range(CORNERS):
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        noise = noise.sign() if number % 2 else noise
        if case.norm == "l2":
            noise /= noise.flatten(1).norm(dim=1).view_as(wide)
        else:
            noise = noise.clamp(-1, 1)
        at = (x + wide * noise).to(case.inputs.dtype)
        for model in (case.dense, pruned):
            scores = model(at.clone())
            found |= (scores.argmax(1) != classes) | ~scores.isfinite().all(1)
    return found & (radius > 0)


@torch.no_grad()
def finite(model: nn.Module, x: Tensor) -> bool:
    """Whether all that a network computes are numbers, not its scores alone: a ReLU hides what is minus infinity."""
    x = x.clone()
    return all(bool((x := part(x)).isfinite().all()) for part in model)


@torch.no_grad()
def noisy(model: nn.Module, x: Tensor) -> bool:
    """Whether rounding makes up the scores, in float64 too: a batch-norm takes away a million times what is left."""
    size = float(model(x.clone()).abs().max())
    norms = [part for part in model if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)]
    shifts = (part.running_mean * part.weight * (part.running_var + part.eps).rsqrt() for part in norms)
    return any(float(shift.abs().max()) > 1e6 * size for shift in shifts)


def check(case: Case) -> tuple[int, list[str]]:
    """Samples whose certified ball was attacked, and what is wrong."""
    if not finite(case.dense, case.inputs):
        return 0, []
    try:
        pruned = case.pruned()
        if not finite(pruned, case.inputs):
            return 0, []  # on samples it was not pruned for
        if noisy(pruned, case.inputs):
            return 0, []
        made = case.certify(pruned)
    except feta.FetaError as error:
        return 0, [f"refused: {error}"]
    except Exception as error:
        return 0, [f"{type(error).__name__}: {error}"]
    attacked, wrong = 0, []
    classes = torch.tensor([dense for dense, _ in made.classes])
    for name, form in made.forms.items():
        radius = torch.tensor(form.radius, dtype=torch.float64)
        attacked = max(attacked, int((radius > 0).sum()) + (form.certified_but_changed or 0))
        changed = fooled(case, pruned, radius, classes)
        if form.certified_but_changed or bool(changed.any()) or not bool(radius.isfinite().all()):
            count = (form.certified_but_changed or 0) + int(changed.sum())
            wrong.append(f"{name}: {count} certified balls hold another class, radii up to {float(radius.max()):.3g}")
    return attacked, wrong


def run(count: int, seed: int) -> Tally:
    tally, number, counts = Tally("certificates"), 0, Counter[str]()
    while tally.tried < count and number < count:
        case = drawn(seed, number)
        attacked, wrong = check(case)
        tally.tried += attacked
        counts["networks"] += 1
        counts["networks with a certified sample"] += attacked > 0
        again = f"soak.certificates.check(soak.certificates.drawn({seed}, {number}))"
        tally.wrong += [f"{again}: {line}; {case.said}" for line in wrong]
        number += 1
    print("certificates:", ", ".join(f"{n:,} {kind}" for kind, n in counts.items()))
    return tally
