"""What a user gives, as inputs of a model: labels are dropped, and several inputs named as forward names them."""

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from numpy import ndarray
from torch import Tensor, nn

from feta.errors import NotData, shown

LABEL_KEYS = frozenset({"label", "labels", "target", "targets", "y"})

Batch = Tensor | dict[str, Tensor]


class Names(NamedTuple):
    """The arguments of a model's forward."""

    required: tuple[str, ...] = ()  # which it cannot do without
    second: str | None = None  # which it takes in the second place, if anything is there


def names_of(model: nn.Module | None) -> Names:
    """By its signature; nothing where it has none."""
    try:
        parameters = [] if model is None else list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return Names()
    placed, named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    required = (p.name for p in parameters if p.kind in (placed, named) and p.default is inspect.Parameter.empty)
    return Names(tuple(required), next((p.name for p in parameters[1:2] if p.kind is placed), None))


def left_out(batch: Any, names: Names) -> str | None:
    """What a pair has for the model, by its looks, and does not come to it as it is no dict; None of a label."""
    if names.second is None or names.second in names.required or names.second in LABEL_KEYS:
        return None
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        return None
    x, other = batch[:2]
    alike = isinstance(x, Tensor) and isinstance(other, Tensor) and x.ndim > 1 and x.shape[:2] == other.shape[:2]
    return names.second if alike else None


def model_input(batch: Any, required: Sequence[str]) -> Batch:
    """A batch as a tensor, or as keyword arguments."""
    if isinstance(batch, Tensor) and batch.ndim:
        return batch
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key not in LABEL_KEYS or key in required}
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Tensor) and batch[0].ndim:
        several = len(batch) >= len(required) > 1
        return dict(zip(required, batch, strict=False)) if several else batch[0]
    dicts = [isinstance(part, Mapping) for part in batch] if isinstance(batch, tuple | list) else []
    if dicts[:1] == [True] and not any(dicts[1:]):  # what follows are labels; more dicts would be more samples
        return model_input(batch[0], required)
    cure = (
        "; write torch.from_numpy(x) for each" if _arrays(batch) else "; of several inputs give dicts by their names"
    )
    raise NotData(f"data must yield tensors of samples, (x, y) pairs or dicts, got {shown(batch)}{cure}")


def _arrays(batch: Any) -> bool:
    return isinstance(batch[0] if isinstance(batch, tuple | list) and batch else batch, ndarray)


def all_samples(data: Any, required: Sequence[str]) -> Batch | None:
    """Data that holds all samples at once: a tensor, a dict of tensors, or a tensor for each input; else None."""
    if isinstance(data, ndarray):
        raise NotData(f"data must be a tensor or batches of tensors, got {shown(data)}; write torch.from_numpy(data)")
    if isinstance(data, str | os.PathLike):
        name = f"{type(data).__name__} {shown(str(data))}"
        raise NotData(
            f"data must be a tensor or an iterable of batches, got {name}; load it first, such as "
            "torch.from_numpy(numpy.load(…)), or give it to the command line: feta prune MODEL --data FILE"
        )
    if isinstance(data, Mapping):
        if not any(isinstance(value, Tensor) and value.ndim for value in data.values()):
            raise NotData(f"data must hold tensors with samples as rows, got a dict of {sorted(map(str, data))}")
        return model_input(data, required)
    each = isinstance(data, tuple | list) and len(data) == len(required) > 1
    if isinstance(data, Tensor) or (each and all(isinstance(part, Tensor) for part in data)):
        return model_input(data, required)
    return None
