"""low_rank: a Linear layer as the product of two smaller ones, by the singular value decomposition.

    W (d_in, d_out)  ≈  P Q,   P (d_in, r), Q (r, d_out):   the best approximation of rank r in Frobenius norm

The paper leaves the softmax layer to this. It pays when r (d_in + d_out) < d_in d_out.
"""

import torch
from torch import nn

from feta.calibration.copies import copied
from feta.errors import ConfigError, ModelError, check_range, quoted
from feta.gates import gated


@gated
@torch.no_grad()
def low_rank(
    model: nn.Module, layer: str | None = None, *, rank: int | None = None, energy: float | None = None
) -> nn.Module:
    """A copy of `model` with one Linear, by default the last, replaced by two of the given rank.

    model: any nn.Module; it is not changed.
    layer: the name of the Linear; None: the last one.
    rank: of the two layers that take its place; it pays where rank (d_in + d_out) is less than d_in d_out.
    energy: instead of a rank, the share of the squared singular values to keep, in (0, 1]; the least rank that does
        is taken.
    """
    if (rank is None) == (energy is None):
        raise ConfigError(f"low_rank must be given a rank or an energy, got rank={rank} and energy={energy}")
    check_range("low_rank", "in (0, 1]", energy=energy)
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if layer is None and not linear:
        raise ModelError("low_rank must have a Linear to replace, got a model without one")
    name = linear[-1] if layer is None else layer
    result = copied(model)
    try:
        old = result.get_submodule(name)
    except AttributeError:
        raise ConfigError(f"low_rank.layer must name a layer of the model, got {quoted(name)}") from None
    if not isinstance(old, nn.Linear):
        raise ModelError(f"layer '{name}' must be a Linear, got {type(old).__name__}")
    if not bool(torch.isfinite(old.weight).all()):
        raise ModelError(f"layer '{name}' must have finite weights, got NaN or infinite ones")
    left, values, right = torch.linalg.svd(old.weight.double(), full_matrices=False)  # (out, r), (r,), (r, in)
    if rank is not None and not 1 <= rank <= len(values):
        raise ConfigError(f"low_rank.rank must be in 1 … {len(values)}, got {rank}")
    shares = values.square().cumsum(0) / values.square().sum().clamp_min(torch.finfo(values.dtype).tiny)
    # The last share may fall short of 1 by rounding.
    r = rank or int((shares >= min(energy or 1.0, float(shares[-1]))).nonzero()[0]) + 1
    first = nn.Linear(old.in_features, r, bias=False)
    second = nn.Linear(r, old.out_features, bias=old.bias is not None)
    # The singular values are shared out, so that both factors are of the same size.
    first.weight.copy_(values[:r].sqrt()[:, None] * right[:r])
    second.weight.copy_(left[:, :r] * values[:r].sqrt())
    if old.bias is not None:
        second.bias.copy_(old.bias)
    pair = nn.Sequential(first, second).to(old.weight.device, old.weight.dtype)
    if not name:
        raise ModelError("low_rank must have a model with the Linear inside it, got the bare Linear")
    parent, _, child = name.rpartition(".")
    setattr(result.get_submodule(parent), child, pair.train(old.training))
    return result
