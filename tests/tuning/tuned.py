"""A small network, wrappers around it, and what the tests of tuning compare."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import feta


def build(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes with ReLU between them, in eval mode; the same weights every time."""
    torch.manual_seed(0)
    pairs = pairwise(sizes)
    return nn.Sequential(*[m for pair in pairs for m in (nn.Linear(*pair), nn.ReLU())][:-1]).eval()


class Around(nn.Module):
    """A network inside another: `call` gets the inner one and the inputs."""

    def __init__(self, inner: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, *args: Any, **inputs: Any) -> Any:
        return self.call(self.inner, *args, **inputs)


def same(model: nn.Module, other: nn.Module) -> bool:
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def holds(model: nn.Module, masks: Mapping[str, Tensor]) -> bool:
    """Whether the zeros of a model are those of the masks."""
    return all(torch.equal(mask, masks[name]) for name, mask in feta.masks_of(model).items())
