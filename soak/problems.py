"""Hostile layer problems for every method: dead, doubled, constant and tiny things, at every scale and precision.

What must hold, whatever the layer: finite weights, the promised count, nothing of the caller's changed, no error that
is not a FetaError and none at all for finite data, and `ok` only for an answer that is no worse than thresholding,
nor than no output at all, nor empty where weights may stay.
"""

import copy
import random
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import feta
from feta.problem import Activation
from feta.pruners import METHODS, make
from feta.sparsity import Sparsity, top_k_mask
from soak.tally import Tally

COUNT = 10_000
DTYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
# The full searches take long, and are the same code: most problems get short ones.
SHORT: dict[str, tuple[dict[str, Any], ...]] = {
    "feta": ({}, {"quality": "fast"}, {"quality": "best"}, {"memory": 1e-9}),
    "net-trim": ({"iterations": 60, "search_steps": 3}, {"iterations": 60, "search": "constraint"}, {}),
    "feta-svrg": ({"outer": 2, "search_steps": 4}, {"regulariser": "rows", "outer": 2}, {"step": 0.1}),
    "corenet": ({}, {"neuron_removal": False}),
    "alps": ({}, {"refit": "exact"}, {"fit_bias": False}),
    "lobs": ({}, {"damping": 0.0}),
    "sparsegpt": ({}, {"fit_bias": True, "block": 2}),
    "wanda": ({}, {"scope": "layer"}),
}


@dataclass
class Hostile:
    """One layer, its data, and what is asked for."""

    W: Tensor
    A: Tensor
    bias: Tensor | None
    activation: Activation
    target: Sparsity
    method: str
    options: dict[str, Any]
    said: str

    @property
    def outputs(self) -> Tensor:
        """B in the layer's own precision, as a network would give it."""
        wide = torch.float32 if self.W.dtype.itemsize < 4 else self.W.dtype
        Z = self.A.to(wide) @ self.W.to(wide)
        return self.activation(Z if self.bias is None else Z + self.bias.to(wide)).to(self.W.dtype)


def drawn(seed: int, number: int) -> Hostile:
    """The problem of this number, the same each time."""
    pick = random.Random(f"{seed}/{number}")
    noise = torch.Generator().manual_seed(pick.getrandbits(40))
    method = list(METHODS)[number % len(METHODS)]
    m, d_in, d_out = pick.choice((1, 2, 3, 9, 40, 90)), pick.choice((1, 2, 3, 8, 14)), pick.choice((1, 2, 5, 9))
    dtype = pick.choice(DTYPES)
    kinds = pick.choice(list(ROWS)), pick.choice(list(WEIGHTS)), pick.choice(list(BIASES))
    A = ROWS[kinds[0]](torch.randn(m, d_in, generator=noise, dtype=torch.float64))
    W = WEIGHTS[kinds[1]](torch.randn(d_in, d_out, generator=noise, dtype=torch.float64))
    # Products must stay inside the precision: an overflow is no layer, and is tried in the tests of the gates.
    most = 3 if dtype is torch.float16 else 18
    least = -6 if dtype is torch.float16 else -25
    scales = pick.choice(((0, 0), (0, 0), (pick.randint(least, most), pick.randint(least, most))))
    if sum(scales) > most:
        scales = scales[0], 0
    A, W = _scaled(A, scales[0], dtype), _scaled(W, scales[1], dtype)
    size = float((A.double() @ W.double()).abs().max())
    bias = BIASES[kinds[2]](torch.randn(d_out, generator=noise, dtype=torch.float64), size)
    bias = None if bias is None else _scaled(bias, 0, dtype)
    if pick.random() < 0.3:
        A, W = A.t().contiguous().t(), torch.stack([W, W], 2)[..., 0]  # neither is contiguous
    ends = (0, 1, d_in * d_out - 1, d_in * d_out, d_in * d_out // 2, d_in * d_out // 4, d_in * d_out // 10)
    target = Sparsity(nonzeros=max(0, pick.choice(ends)))
    activation = pick.choice((Activation.RELU, Activation.RELU, Activation.LINEAR, Activation.GELU))
    options = pick.choice(SHORT.get(method, ({},)))
    said = f"{method} {options}, {m} rows, {d_in} x {d_out} {dtype}, keep {target.nonzeros}, {activation.value}, "
    said += f"rows {kinds[0]}, weights {kinds[1]}, bias {kinds[2]}, scales 1e{scales[0]} and 1e{scales[1]}"
    return Hostile(W, A, bias, activation, target, method, options, said)


def _scaled(tensor: Tensor, power: int, dtype: torch.dtype) -> Tensor:
    most = float(torch.finfo(dtype).max)
    return (tensor * 10.0**power).clamp(-most, most).to(dtype)


def _columns(X: Tensor, *which: int, by: float) -> Tensor:
    X[:, [column % X.shape[1] for column in which]] *= by
    return X


ROWS = {
    "plain": lambda A: A,
    "never negative": lambda A: A.relu(),
    "around a large mean": lambda A: A * 1e-3 + 10,
    "dead inputs": lambda A: _columns(A, 0, 2, by=0.0),
    "empty rows": lambda A: A * (torch.arange(len(A)) % 2)[:, None],
    "all zero": lambda A: A * 0,
    "doubled inputs": lambda A: A[:, torch.arange(A.shape[1]) // 2],
    "one row again and again": lambda A: A[:1].expand(len(A), -1).clone(),
    "constant": lambda A: torch.ones_like(A),
    "rank one": lambda A: A[:, :1] @ A[:1],
    "denormal": lambda A: A * 1e-40,
    "columns of all scales": lambda A: A * 10.0 ** torch.linspace(-9, 2, A.shape[1], dtype=A.dtype),
    "one outlier": lambda A: _columns(A, 0, by=1e3),
    "all negative": lambda A: -A.abs(),
}
WEIGHTS = {
    "plain": lambda W: W,
    "all zero": lambda W: W * 0,
    "empty inputs": lambda W: W * (torch.arange(len(W)) % 2)[:, None],
    "empty outputs": lambda W: _columns(W, 0, by=0.0),
    "ties": lambda W: torch.ones_like(W),
    "doubled": lambda W: W[:, torch.arange(W.shape[1]) // 2],
    "one huge": lambda W: _columns(W, 0, by=1e3),
    "denormal": lambda W: W * 1e-40,
    "of all scales": lambda W: W * 10.0 ** torch.linspace(-9, 2, W.shape[1], dtype=W.dtype),
    "mostly zero": lambda W: W.where(W.abs() > 1.5, 0),
    "all negative": lambda W: -W.abs(),
}
BIASES = {
    "none": lambda b, size: None,
    "plain": lambda b, size: b * (size or 1.0),
    "zero": lambda b, size: b * 0,
    "huge": lambda b, size: b * (size or 1.0) * 1e3,
    "dead": lambda b, size: -4 * b.abs() * (size or 1.0) - 2 * size,
    "denormal": lambda b, size: b * 1e-40,
}


def check(problem: Hostile) -> tuple[str, str]:
    """The status, and what is wrong, or nothing."""
    B, mine = problem.outputs, [problem.W, problem.A, *([] if problem.bias is None else [problem.bias])]
    before = [tensor.clone() for tensor in (*mine, B)]
    finite = bool(torch.isfinite(B).all())
    try:
        found = feta.smart_prune(
            problem.W,
            problem.A,
            B,
            sparsity=problem.target,
            method=problem.method,
            activation=problem.activation.value,
            bias=problem.bias,
            options=problem.options,
        )
    except feta.FetaError as error:
        return "refused", f"refused finite data: {error}" if finite else ""
    except Exception as error:
        return "raised", f"{type(error).__name__}: {error}"
    if not finite:
        return found.status.value, "infinite outputs were taken"
    if not all(torch.equal(one, other) for one, other in zip(before, (*mine, B), strict=True)):
        return found.status.value, "the caller's tensors were changed"
    return found.status.value, _broken(problem, found) or _flattered(problem, B, found)


def check_in_network(problem: Hostile) -> tuple[str, str]:
    """The same of the layer in a network, which `prune` walks."""
    (d_in, d_out), dtype = problem.W.shape, problem.W.dtype
    after = {Activation.RELU: nn.ReLU(), Activation.GELU: nn.GELU()}.get(problem.activation, nn.Identity())
    model = nn.Sequential(nn.Linear(d_in, d_out, problem.bias is not None), after, nn.Linear(d_out, 2)).to(dtype)
    with torch.no_grad():
        model[0].weight.copy_(problem.W.t())
        nn.init.constant_(model[2].weight, 0.5)
        if problem.bias is not None:
            model[0].bias.copy_(problem.bias)
    before = copy.deepcopy(model.state_dict())
    finite = bool(torch.isfinite(model[0](problem.A)).all() and torch.isfinite(model(problem.A)).all())
    share = 1 - problem.target.count(problem.W.numel()) / problem.W.numel()
    keep = Sparsity(min(share, 0.999)).count(problem.W.numel())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = feta.prune(
                model, problem.A, min(share, 0.999), problem.method, layers="0", options=problem.options
            )
    except feta.FetaError as error:
        return "refused", f"refused finite data: {error}" if finite else ""
    except Exception as error:
        return "raised", f"{type(error).__name__}: {error}"
    (layer,) = found.report.layers
    if not all(torch.equal(value, model.state_dict()[name]) for name, value in before.items()):
        return layer.status, "the model was changed"
    U, bias = found.model[0].weight.detach().t(), found.model[0].bias
    asked = replace(problem, target=Sparsity(nonzeros=keep))
    wrong = _broken(asked, feta.LayerSolution(U, None if bias is None else bias.detach()))
    if not wrong and layer.status != "ok" and not layer.message:
        wrong = f"{layer.status} says nothing"
    slack = 1e-4 + 4 * torch.finfo(dtype).eps
    if not wrong and layer.status == "ok" and (layer.relative_error or 0) > 1 + slack:
        wrong = f"the error is {layer.relative_error:.6g}"
    return layer.status, wrong


def _broken(problem: Hostile, found: feta.LayerSolution) -> str:
    """What is wrong with the form of the answer."""
    for name, got, like in (("U", found.U, problem.W), ("bias", found.bias, problem.bias)):
        if (got is None) != (like is None) or (
            got is not None and (got.shape, got.dtype) != (like.shape, like.dtype)
        ):
            return f"{name} has another form"
        if got is not None and not bool(torch.isfinite(got).all()):
            return f"{name} is not finite"
    keep, kept = problem.target.count(problem.W.numel()), int(found.U.count_nonzero())
    least = min(keep, int(problem.W.count_nonzero()))
    exact = make(problem.method, problem.options).needs.count == "exact"
    if kept > keep or (exact and kept < least):
        return f"{kept} weights are kept, {least} to {keep} were promised"
    return ""


def _flattered(problem: Hostile, B: Tensor, found: feta.LayerSolution) -> str:
    """Why `ok` is too good a word, or a status has no message."""
    if found.status.value != "ok":
        return "" if found.message else f"{found.status.value} says nothing"
    keep = problem.target.count(problem.W.numel())
    size = float(torch.linalg.vector_norm(B.double()))
    if keep and size and bool(problem.W.any()) and not bool(found.U.any()):
        return "all weights are zero"
    safe = problem.W.where(top_k_mask(problem.W.double().abs(), keep), 0)
    error, limit = relative(problem, found.U, found.bias, B), relative(problem, safe, problem.bias, B)
    slack = 2e-5 + rounding(problem, found, size)
    if error > limit * 1.001 + slack:
        return f"the error is {error:.6g}, thresholding's {limit:.6g}"
    return f"the error is {error:.6g}" if error > 1 + slack else ""


def relative(problem: Hostile, U: Tensor, bias: Tensor | None, B: Tensor) -> float:
    """The relative error in float64."""
    Z = problem.A.double() @ U.double()
    wrong = problem.activation(Z if bias is None else Z + bias.double()) - B.double()
    error, size = (float(torch.linalg.vector_norm(part)) for part in (wrong, B.double()))
    return error / size if size > 0 else float(error > 0)


def rounding(problem: Hostile, found: feta.LayerSolution, size: float) -> float:
    """What the precision alone may cost: each output is a sum of rounded products, of rounded weights."""
    largest = torch.maximum(found.U.double().abs(), problem.W.double().abs())
    sums = problem.A.double().abs() @ largest
    for bias in (problem.bias, found.bias):
        sums = sums if bias is None else sums + bias.double().abs()
    kind = torch.finfo(problem.W.dtype)
    lost = 4 * kind.eps * float(sums.norm()) + kind.smallest_normal * (1 + float(problem.A.double().norm()))
    return lost / size if size > 0 else float(lost > 0)


def run(count: int, seed: int) -> Tally:
    tally, statuses = Tally("problems"), Counter[str]()
    for number in range(count):
        problem = drawn(seed, number)
        how = check_in_network if number // len(METHODS) % 4 == 3 else check
        status, wrong = how(problem)
        statuses[status] += 1
        tally.tried += 1
        if wrong:
            tally.wrong.append(
                f"soak.problems.{how.__name__}(soak.problems.drawn({seed}, {number})): {wrong}; {problem.said}"
            )
    print("problems:", ", ".join(f"{kind} {n:,}" for kind, n in statuses.most_common()))
    return tally
