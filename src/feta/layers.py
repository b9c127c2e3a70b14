"""LayerView: a Linear or Conv2d as a (d_in, d_out) matrix and its activations as rows.

The only place that looks at layer types or transposes. A convolution is unfolded into rows a few
samples at a time: row (n, position) holds the patch that meets the kernel there, so that

    rows(x) @ matrix() + bias  =  output_rows(layer(x))

A grouped convolution is `groups` independent problems of the same size, one per block of channels.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.errors import ConfigError, ModelError

PRUNABLE = (nn.Linear, nn.Conv2d)


def prunable_names(model: nn.Module) -> list[str]:
    """Every Linear and Conv2d by its dotted name, in the order in which the model defines them."""
    return [name for name, module in model.named_modules() if isinstance(module, PRUNABLE)]


def first_match(name: str, patterns: Iterable[str]) -> str | None:
    """The first of some shell patterns ("fc*", "encoder.*.mlp.*") that a layer's name matches."""
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def matching(names: Sequence[str], patterns: Sequence[str] | str, where: str = "layers") -> list[str]:
    """The names that match a pattern, in their order. Raises ConfigError without patterns, or if one matches none."""
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    if not wanted:
        raise ConfigError(f"{where} must name at least one layer, got none")
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"{where} must name layers that can be pruned, got '{pattern}' which matches none of {list(names)}"
            )
    return [name for name in names if first_match(name, wanted) is not None]


@dataclass(frozen=True)
class LayerView:
    """Matrix and rows of one layer; `write` is the only method that changes it."""

    layer: nn.Module
    name: str = "layer"

    def __post_init__(self) -> None:
        if not isinstance(self.layer, PRUNABLE):
            kind = type(self.layer).__name__
            raise ModelError(f"layer '{self.name}' must be a Linear or a Conv2d, got {kind}")
        if "weight" not in self.layer._parameters:
            # Writing to a weight that is computed on each use would be lost without a word.
            raise ModelError(
                f"layer '{self.name}' must hold its weight as a plain parameter, got a parametrised one; "
                "make it plain with torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')"
            )

    @property
    def weight(self) -> Tensor:
        return self.layer.weight  # type: ignore[return-value]

    @property
    def groups(self) -> int:
        return self.layer.groups if isinstance(self.layer, nn.Conv2d) else 1

    @property
    def solve_dtype(self) -> torch.dtype:
        """Half-precision layers are solved in float32 and cast back."""
        return self.weight.dtype if self.weight.dtype in (torch.float32, torch.float64) else torch.float32

    def matrix(self, group: int = 0) -> Tensor:
        """W (d_in, d_out) of one group, a copy."""
        flat = self.weight.detach().reshape(self.weight.shape[0], -1)  # (out, in)
        return flat.chunk(self.groups)[group].t().to(self.solve_dtype, copy=True).contiguous()

    def bias(self, group: int = 0) -> Tensor | None:
        bias = self.layer.bias
        if bias is None:
            return None
        return bias.detach().chunk(self.groups)[group].to(self.solve_dtype, copy=True)  # type: ignore[operator]

    @torch.no_grad()
    def write(self, U: Tensor, bias: Tensor | None, group: int = 0) -> None:
        """Put a pruned matrix, and its bias, back into the layer."""
        block = self.weight.chunk(self.groups)[group]
        block.copy_(U.t().reshape(block.shape))  # not through a flat view: channels-last weights have none
        if bias is not None and self.layer.bias is not None:
            self.layer.bias.chunk(self.groups)[group].copy_(bias)  # type: ignore[operator]

    def row_chunks(self, x: Tensor, z: Tensor, group: int, max_values: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(A, Z) rows of one group from a layer's input and output, about max_values entries of A a chunk."""
        if isinstance(self.layer, nn.Conv2d):
            z = z if z.ndim == 4 else z[None]  # one image, without a batch
            z = z.chunk(self.groups, dim=1)[group].movedim(1, -1)  # (samples, height, width, d_out)
        else:
            z = z.reshape(-1, z.shape[-1])
        start = 0
        for A in self.input_chunks(x, group, max_values):
            stop = start + len(A) // math.prod(z.shape[1:-1])
            yield A, z[start:stop].flatten(0, -2)
            start = stop

    def input_chunks(self, x: Tensor, group: int, max_values: int) -> Iterator[Tensor]:
        """The rows A of `row_chunks` alone."""
        conv = self.layer
        if not isinstance(conv, nn.Conv2d):
            A = x.reshape(-1, x.shape[-1])
            yield from A.split(max(1, max_values // A.shape[1]))
            return
        x = (x if x.ndim == 4 else x[None]).chunk(conv.groups, dim=1)[group]
        left, right, top, bottom = padding = padding_of(conv)
        sizes = (x.shape[-2] + top + bottom, x.shape[-1] + left + right)
        rows, columns = (
            (size - d * (k - 1) - 1) // s + 1
            for size, d, k, s in zip(sizes, conv.dilation, conv.kernel_size, conv.stride, strict=True)
        )
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        for part in x.split(max(1, max_values // max(rows * columns * self.weight[0].numel(), 1))):
            padded = F.pad(part, padding, mode=mode)
            patches = F.unfold(padded, conv.kernel_size, dilation=conv.dilation, stride=conv.stride)
            yield patches.transpose(1, 2).flatten(0, 1)  # (samples * positions, d_in)


def padding_of(conv: nn.Conv2d) -> list[int]:
    """left, right, top, bottom, as F.pad wants them."""
    if conv.padding == "valid":
        return [0, 0, 0, 0]
    if conv.padding == "same":
        totals = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
        (top, bottom), (left, right) = ((t // 2, t - t // 2) for t in totals)
        return [left, right, top, bottom]
    height, width = (int(size) for size in conv.padding)
    return [width, width, height, height]
