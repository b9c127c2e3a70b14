"""A whole model: a copy to work on, what it takes in memory, and how far its outputs are from another's."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from feta.calibration.copies import copied
from feta.inference.base import ForInference
from feta.inference.example import outputs

TOLERANCE = 1e-3  # of the whole model's outputs, relative: ten times what one layer is allowed


def plain_copy(model: nn.Module) -> nn.Module:
    """A copy in eval mode without gradients; weights that are computed on each use (masks held) become plain ones."""
    made = copied(model).eval().requires_grad_(False)
    for module in made.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and parametrize.is_parametrized(module):
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(module, name)
    return made.requires_grad_(False)


def bytes_of(model: nn.Module) -> int:
    """What a model takes in memory, with what layers made at their first call; shared tensors count once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in state_of(model)}
    return sum(storages.values())


def state_of(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        if isinstance(module, ForInference):
            yield from module.held()


def tolerance(model: nn.Module) -> float:
    """Ten roundings of the coarsest weights, as sums in another order differ by those."""
    kinds = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    return max([TOLERANCE, *(10 * torch.finfo(kind).eps for kind in kinds)])


def distance(one: object, other: object) -> float:
    """The largest difference of outputs relative to their norm; what is not finite in both alike counts as equal."""
    worst = 0.0
    for ours, theirs in zip(outputs(one), outputs(other), strict=True):
        difference = torch.linalg.vector_norm((ours - theirs).double().nan_to_num(0.0))
        norm = torch.linalg.vector_norm(theirs.double().nan_to_num(0.0))
        worst = max(worst, float(difference / norm.clamp_min(torch.finfo(torch.float64).tiny)))
    return worst
