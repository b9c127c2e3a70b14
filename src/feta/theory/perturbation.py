"""What pruning did to each layer, and what its error can grow to at the output: the quantities of the theorems.

    e_ij   = ‖f_i(a_ij; W) − f_i(a_ij; U)‖   the error of layer i alone at sample j, on the inputs a_ij it has in
                                             the dense network, after the ReLU that follows; C1 = max over j
    H_i    = U_i − W_i                       of layers with batch-norm folded in
    gain_i = product of the Lipschitz constants of all stages after layer i

One pass over the samples; per sample a score and an error per layer are kept, activations never.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from feta.certificates.chain import Chain
from feta.certificates.stages import Affine, ReLU, Stage
from feta.errors import ConfigError, ModelError
from feta.theory.margins import gaps
from feta.theory.robustness import log


@dataclass(frozen=True, eq=False)
class LayerChange:
    """One layer, dense and pruned. Names with `matrix` are of the reshaped kernel, as the paper prints them."""

    chains: tuple[Chain, Chain]  # dense, pruned
    place: int  # of the layer among the stages
    errors: Tensor  # (samples,) e_ij

    @property
    def dense(self) -> Affine:
        return self.chains[0].stages[self.place]  # type: ignore[return-value]

    @property
    def pruned(self) -> Affine:
        return self.chains[1].stages[self.place]  # type: ignore[return-value]

    @property
    def name(self) -> str:
        return self.dense.name

    @cached_property
    def difference(self) -> Affine:
        """H = U − W, and what became of the bias."""
        return self.pruned.minus(self.dense)

    @property
    def largest_error(self) -> float:
        """C1 over the samples."""
        return float(self.errors.max())

    @property
    def log_reach(self) -> float:
        """ln of the proven Lipschitz constant of the dense stages before it."""
        return log_lipschitz(self.chains[0].stages[: self.place])

    @property
    def log_gain(self) -> float:
        """ln of that of the dense stages behind it."""
        return log_lipschitz(self.chains[0].stages[self.place + 1 :])

    @property
    def log_pruned_gain(self) -> float:
        """ln of that of the pruned stages behind it."""
        return log_lipschitz(self.chains[1].stages[self.place + 1 :])

    @property
    def log_matrix_gain(self) -> float:
        """ln of the product of the matrix norms of the dense layers behind it."""
        return log_matrix_product(self.chains[0].stages[self.place + 1 :])


@dataclass(frozen=True, eq=False)
class Perturbation:
    """Two networks of one shape, compared on samples. Norms are computed when they are asked for."""

    dense: Chain
    pruned: Chain
    layers: tuple[LayerChange, ...]
    gaps: Tensor  # (samples,) largest output minus the second, dense
    pruned_gaps: Tensor
    shifts: Tensor  # (samples,) ‖f_dense(x) − f_pruned(x)‖
    agree: int  # samples to which both give the same class
    largest_input: float  # D

    @property
    def samples(self) -> int:
        return len(self.gaps)

    @property
    def classes(self) -> int:
        return self.dense.out_shape[0]

    @property
    def log_shifts(self) -> Tensor:
        """(samples,) ln of a proven upper value of `shifts`: the sum of gain · error over the layers."""
        parts = torch.stack([layer.errors.log() + layer.log_pruned_gain for layer in self.layers])
        return parts.logsumexp(0)


@torch.no_grad()
def measure(dense: Chain, pruned: Chain, batches: Iterable[Tensor]) -> Perturbation:
    """Every quantity the theorems need, from two chains and a pass over inputs."""
    check_alike(dense, pruned)
    if len(dense.out_shape) != 1 or dense.out_shape[0] < 2:
        raise ModelError(f"the network must give scores of two or more classes, got shape {dense.out_shape}")
    places = [i for i, stage in enumerate(dense.stages) if isinstance(stage, Affine)]
    errors: list[list[Tensor]] = [[] for _ in places]
    scores: list[tuple[Tensor, ...]] = []
    agree, largest_input = 0, 0.0
    for batch in batches:
        x = batch.to(dense.device, dense.dtype)
        largest_input = max(largest_input, float(x.flatten(1).norm(dim=1).max()))
        y = x
        for i, (stage, other) in enumerate(zip(dense.stages, pruned.stages, strict=True)):
            if isinstance(stage, Affine):
                met = stage.apply(x)
                errors[places.index(i)].append(_error(dense, i, met, other.apply(x)).cpu())
                x = met
            else:
                x = stage.apply(x)
            y = other.apply(y)
        agree += int((x.argmax(1) == y.argmax(1)).sum())
        scores.append((gaps(x).cpu(), gaps(y).cpu(), (x - y).norm(dim=1).cpu()))
    if not scores:
        raise ConfigError("data must hold at least one sample, got none")
    dense_gaps, pruned_gaps, shifts = (torch.cat(parts).double() for parts in zip(*scores, strict=True))
    chains = (dense, pruned)
    layers = (LayerChange(chains, i, torch.cat(e).double()) for i, e in zip(places, errors, strict=True))
    return Perturbation(dense, pruned, tuple(layers), dense_gaps, pruned_gaps, shifts, agree, largest_input)


def _error(chain: Chain, place: int, first: Tensor, second: Tensor) -> Tensor:
    """(samples,) the distance of a layer's two outputs, after the ReLU where one follows."""
    if place + 1 < len(chain.stages) and isinstance(chain.stages[place + 1], ReLU):
        first, second = first.relu(), second.relu()
    distance: Tensor = torch.linalg.vector_norm((first - second).flatten(1), dim=1)
    return distance


def blend(dense: Chain, pruned: Chain, share: float) -> Chain:
    """The network on the straight line from dense (0) to pruned (1)."""
    check_alike(dense, pruned)

    def between(stage: Affine, other: Affine) -> Affine:
        weight = torch.lerp(stage.weight, other.weight.to(stage.weight), share)
        return replace(stage, weight=weight, bias=torch.lerp(stage.bias, other.bias.to(stage.bias), share))

    pairs = zip(dense.stages, pruned.stages, strict=True)
    return Chain(
        tuple(between(s, o) if isinstance(s, Affine) and isinstance(o, Affine) else s for s, o in pairs)
    )


def check_alike(dense: Chain, pruned: Chain) -> None:
    """Both must be the same network but for its weights."""
    shapes = [[(type(s), s.in_shape, s.out_shape) for s in chain.stages] for chain in (dense, pruned)]
    if shapes[0] != shapes[1]:
        ours, theirs = (
            [f"{s.name}: {s.in_shape} → {s.out_shape}" for s in c.stages] for c in (dense, pruned)
        )
        raise ModelError(
            f"the two networks must be alike but for their weights, got stages {ours} and {theirs}"
        )


def log_lipschitz(stages: Iterable[Stage]) -> float:
    """ln of the proven Lipschitz constant of stages in a row; minus infinity where a layer is all zeros."""
    return sum((log(stage.lipschitz) for stage in stages), 0.0)


def log_matrix_product(stages: Iterable[Stage]) -> float:
    """ln of the product of the matrix norms of the layers among stages; nothing else counts, as printed."""
    return sum((log(stage.matrix_norm) for stage in stages if isinstance(stage, Affine)), 0.0)
