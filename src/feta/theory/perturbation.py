"""What pruning did to each layer, and what its error can grow to at the output: the quantities of the theorems.

    e_ij   = ‖f_i(a_ij; W) − f_i(a_ij; U)‖   the error of layer i alone at sample j, on the inputs a_ij it has in
                                             the dense network, after the ReLU that follows; C1 = max over j
    H_i    = U_i − W_i                       of layers with batch-norm folded in
    gain_i = product of the Lipschitz constants of all stages after layer i

One pass over the samples keeps a gap and an error per layer for each of them, and no activations.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from feta.certificates.chain import Chain
from feta.certificates.stages import Affine, ReLU, Stage, length
from feta.errors import ConfigError, DataError, ModelError
from feta.theory.robustness import Form, log


@dataclass(frozen=True, eq=False)
class LayerChange:
    """One layer, dense and pruned. Names with `matrix` are of the reshaped kernel, as the paper prints them."""

    dense: Affine
    pruned: Affine
    place: int  # of the layer among the stages
    behind: tuple[Stage, ...]  # the dense stages after it
    errors: Tensor  # (samples,) e_ij

    @cached_property
    def difference(self) -> Affine:
        """H = U − W, and what became of the bias."""
        W, U = self.dense, self.pruned
        return replace(U, weight=U.weight - W.weight.to(U.weight), bias=U.bias - W.bias.to(U.bias))

    @property
    def largest_error(self) -> float:
        """C1 over the samples."""
        return float(self.errors.max())


@dataclass(frozen=True, eq=False)
class Perturbation:
    """Two networks of one shape, compared on samples. Norms are computed when they are asked for."""

    dense: Chain
    pruned: Chain
    layers: tuple[LayerChange, ...]
    gaps: Tensor  # (samples,) largest output minus the second, dense
    pruned_gaps: Tensor
    shifts: Tensor  # (samples,) ‖f_dense(x) − f_pruned(x)‖
    answers: Tensor  # (samples,) classes by the dense network
    agree: int  # samples to which both give the same class
    largest_input: float  # D

    @property
    def samples(self) -> int:
        return len(self.gaps)

    @property
    def log_shifts(self) -> Tensor:
        """(samples,) ln of a proven upper value of `shifts`: the sum of gain · error over the layers."""
        behind = ((layer, self.pruned.stages[layer.place + 1 :]) for layer in self.layers)
        parts = [layer.errors.log() + log_product(stages, "sound") for layer, stages in behind]
        return torch.stack(parts).logsumexp(0)


@torch.no_grad()
def measure(dense: Chain, pruned: Chain, batches: Iterable[Any]) -> Perturbation:
    """Every quantity the theorems need, from two chains and a pass over batches of inputs."""
    check_alike(dense, pruned)
    if len(dense.out_shape) != 1 or dense.out_shape[0] < 2:
        raise ModelError(f"the network must give scores of two or more classes, got shape {dense.out_shape}")
    found = [_compare(dense, pruned, batch) for batch in batches]
    if not found:
        raise ConfigError("data must hold at least one sample, got none")
    inputs, gaps, pruned_gaps, shifts, first, second, *errors = map(torch.cat, zip(*found, strict=True))
    places = [place for place, stage in enumerate(dense.stages) if isinstance(stage, Affine)]
    parts = zip(dense.affines, pruned.affines, places, errors, strict=True)
    layers = tuple(LayerChange(w, u, place, dense.stages[place + 1 :], e) for w, u, place, e in parts)
    agree, largest = int((first == second).sum()), float(inputs.max())
    return Perturbation(dense, pruned, layers, gaps, pruned_gaps, shifts, first, agree, largest)


def _compare(dense: Chain, pruned: Chain, batch: Any) -> list[Tensor]:
    """Columns for a batch: ‖x‖, both gaps, the shift, both classes, and the error of every layer."""
    if not isinstance(batch, Tensor):
        raise ConfigError(f"data must yield tensors for bounds, got {type(batch).__name__}")
    if batch.shape[1:] != dense.in_shape:
        raise DataError(f"data must hold samples of one shape, got {tuple(batch.shape[1:])} after {dense.in_shape}")
    x = y = dense.place(batch)
    inputs, errors = length(x), []
    for stage, other, behind in zip_longest(dense.stages, pruned.stages, dense.stages[1:]):
        after = stage.apply(x)
        if isinstance(stage, Affine):
            alone = other.apply(x)
            errors.append(length(after.relu() - alone.relu() if isinstance(behind, ReLU) else after - alone))
        x, y = after, other.apply(y)
    gaps = (top[:, 0] - top[:, 1] for top in (scores.topk(2, dim=1).values for scores in (x, y)))
    return [column.cpu() for column in (inputs, *gaps, length(x - y), x.argmax(1), y.argmax(1), *errors)]


def blend(dense: Chain, pruned: Chain, share: float) -> Chain:
    """The network on the straight line from dense (0) to pruned (1)."""
    check_alike(dense, pruned)

    def between(stage: Stage, other: Stage) -> Stage:
        if not isinstance(stage, Affine) or not isinstance(other, Affine):
            return stage
        weight = torch.lerp(stage.weight, other.weight.to(stage.weight), share)
        return replace(stage, weight=weight, bias=torch.lerp(stage.bias, other.bias.to(stage.bias), share))

    return Chain(tuple(map(between, dense.stages, pruned.stages)))


def check_alike(dense: Chain, pruned: Chain) -> None:
    """Raise ModelError where the networks differ in more than their weights."""
    ours, theirs = (
        [(type(s).__name__, s.in_shape, s.out_shape) for s in chain.stages]
        + [tuple(layer.weight.shape) for layer in chain.affines]
        for chain in (dense, pruned)
    )
    if ours != theirs:
        raise ModelError(f"the two networks must be alike but for their weights, got {ours} and {theirs}")


def log_product(stages: Iterable[Stage], form: Form) -> float:
    """ln of how much stages in a row may enlarge a change; minus infinity where a layer is all zeros."""
    if form == "sound":
        return sum((log(stage.lipschitz) for stage in stages), 0.0)
    # The paper knows nothing of pooling, and takes the norms of reshaped kernels.
    return sum((log(stage.matrix_norm) for stage in stages if isinstance(stage, Affine)), 0.0)
