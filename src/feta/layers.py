"""Layers that can be pruned: what they are called, their weight as a (d_in, d_out) matrix, their activations as rows.

The only place that looks at layer types or transposes. A weight is known by the operator it meets, with the
arguments of that call: a convolution is unfolded into rows a few samples at a time, row (n, position) the patch
that meets the kernel there, so that

    rows(x) @ matrix() + bias  =  output_rows(operator(x))

A grouped convolution is `groups` independent problems of the same size, one per block of channels.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.errors import ConfigError, ModelError, quoted

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
IN_PROJ = "in_proj"  # the name we give to what nn.MultiheadAttention holds as `in_proj_weight`


def cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in another precision: what is finite stays finite, and what is not zero stays so."""
    kind = torch.finfo(dtype)
    if kind.bits >= torch.finfo(values.dtype).bits:
        return values.to(dtype)
    found = values.clamp(kind.min, kind.max).where(values.isfinite(), values).to(dtype)
    smallest = torch.full_like(found, kind.smallest_normal * kind.eps).copysign(found)
    return found.where((found != 0) | (values == 0), smallest)


def refuse_sparsified(model: nn.Module, where: str = "model") -> None:
    """Raise ModelError for a model of feta.sparsify: its layers hold no weights as others know them."""
    if any(getattr(type(module), "_feta_inference", None) is True for module in model.modules()):
        raise ModelError(
            f"{where} must be made of plain layers, got one that feta.sparsify made; give the model that it was made "
            "of, and sparsify again where it runs"
        )


def prunable_names(model: nn.Module) -> list[str]:
    """Every layer that can be pruned by its dotted name, in the order in which the model defines them."""
    names = []
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            names.append(f"{name}.{IN_PROJ}" if name else IN_PROJ)
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) or _is_transposed(module):
            names.append(name)
    return names


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
            got = f"{quoted(pattern)} which matches none of {list(names)}"
            what = "that can be pruned" if where == "layers" else "that are chosen"
            raise ConfigError(f"{where} must name layers {what}, got {got}")
    return [name for name in names if first_match(name, wanted) is not None]


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str, str]:
    """The module that holds a layer's weight, and what it calls the weight and the bias."""
    parent, _, last = name.rpartition(".")
    if last == IN_PROJ and isinstance(attention := model.get_submodule(parent), nn.MultiheadAttention):
        return attention, "in_proj_weight", "in_proj_bias"
    return model.get_submodule(name), "weight", "bias"


def made_plain(module: nn.Module, weight: str) -> str:
    """How a weight that is computed becomes a plain parameter, in words."""
    older = {"mask": "prune.remove", "g": "remove_weight_norm", "u": "remove_spectral_norm"}
    found = [call for key, call in older.items() if hasattr(module, f"{weight}_{key}")]
    call = found[0] if found else "parametrize.remove_parametrizations"
    return f"make it plain with torch.nn.utils.{call}(layer, '{weight}')"


def weight_path(model: nn.Module, name: str) -> str:
    """A layer's weight as named_parameters names it; of a weight with several names, the first."""
    weight = weight_of(model, name)
    return next(path for path, parameter in model.named_parameters() if parameter is weight)


def weight_of(model: nn.Module, name: str) -> nn.Parameter:
    """A layer's weight. Raises ModelError for what cannot be pruned."""
    return LayerView.of(model, name).weight


@dataclass(frozen=True)
class Operator:
    """How a weight meets its inputs: the arguments of the call."""

    spatial: int = 0  # dimensions that a kernel slides over; 0: a matrix product
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] | str = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False  # whether the weight is held as (d_in, d_out)
    time_first: bool = False  # whether the input is (positions, samples, width), as inside torch's attention
    biased: bool = True  # False: calls of one weight have different biases, which then are no part of the layer

    def pad_of(self, kernel: Sequence[int]) -> list[int]:
        """Zeros around the input, as F.pad wants them: the last dimension first."""
        if self.padding == "same":
            totals = [d * (k - 1) for d, k in zip(self.dilation, kernel, strict=True)]
            sides = [(total // 2, total - total // 2) for total in totals]
        else:
            sides = [(0, 0)] * self.spatial if self.padding == "valid" else [(int(p), int(p)) for p in self.padding]
        return [size for side in reversed(sides) for size in side]


@dataclass(frozen=True)
class LayerView:
    """Matrix and rows of one layer; `write` is the only method that changes it."""

    name: str
    weight: nn.Parameter
    bias_parameter: nn.Parameter | None
    operator: Operator

    @classmethod
    def of(cls, model: nn.Module, name: str, operator: Operator | None = None) -> "LayerView":
        """A layer by its name; the operator as it was seen in a forward pass, where there was one."""
        module, weight_name, bias_name = owner_of(model, name)
        known = isinstance(module, nn.Linear | nn.MultiheadAttention) or _is_transposed(module)
        if not (known or isinstance(module, CONVOLUTIONS)):
            kind = type(module).__name__
            raise ModelError(f"layer '{name}' must be a Linear, a convolution or a self-attention, got {kind}")
        weight, bias = (module._parameters.get(entry) for entry in (weight_name, bias_name))
        if weight is None:
            # Writing to a weight that is computed on each use would be lost without a word.
            raise ModelError(
                f"layer '{name}' must hold its weight as a plain parameter, got a parametrised one; "
                f"{made_plain(module, weight_name)}"
            )
        if operator is None:
            groups = module.groups if isinstance(module, CONVOLUTIONS) else 1
            operator = Operator(weight.ndim - 2, groups=groups, transposed=_is_transposed(module))
        return cls(name, weight, bias if operator.biased else None, operator)

    @property
    def groups(self) -> int:
        return self.operator.groups

    @property
    def d_in(self) -> int:
        """The inputs of one group."""
        return len(self.weight) if self.operator.transposed else math.prod(self.weight.shape[1:])

    @property
    def d_out(self) -> int:
        """The outputs of all groups."""
        return self.weight.shape[1 if self.operator.transposed else 0]

    @property
    def taps(self) -> int:
        """The places of a kernel; 1: a matrix product. Input i is at tap i % taps of channel i // taps."""
        return math.prod(self.weight.shape[2:]) if self.operator.spatial else 1

    @property
    def solve_dtype(self) -> torch.dtype:
        """Half-precision layers are solved in float32 and cast back."""
        return self.weight.dtype if self.weight.dtype in (torch.float32, torch.float64) else torch.float32

    def part(self, tensor: Tensor, group: int, dim: int = 0) -> Tensor:
        """What of a tensor belongs to one group: a view."""
        size = tensor.shape[dim] // self.groups
        return tensor.narrow(dim, group * size, size)

    def matrix(self, group: int = 0) -> Tensor:
        """W (d_in, d_out) of one group, a copy."""
        weight = self.weight.detach().t() if self.operator.transposed else self.weight.detach()
        block = self.part(weight.reshape(len(weight), -1), group)
        return block.t().to(self.solve_dtype, copy=True).contiguous()

    def bias(self, group: int = 0) -> Tensor | None:
        if self.bias_parameter is None:
            return None
        return self.part(self.bias_parameter.detach(), group).to(self.solve_dtype, copy=True)

    @torch.no_grad()
    def write(self, U: Tensor, bias: Tensor | None, group: int = 0) -> None:
        """Put a pruned matrix, and its bias, back into the layer."""
        weight = self.weight.t() if self.operator.transposed else self.weight
        block = self.part(weight, group)
        # Not through a flat view: channels-last weights have none.
        block.copy_(cast(U, block.dtype).t().reshape(block.shape))
        if bias is not None and self.bias_parameter is not None:
            self.part(self.bias_parameter, group).copy_(cast(bias, weight.dtype))

    def flat(self, tensor: Tensor) -> Tensor:
        """A tensor of the weight's shape as a matrix (d_in, d_out) with all groups side by side."""
        return tensor if self.operator.transposed else tensor.flatten(1).t()

    def shaped(self, matrix: Tensor) -> Tensor:
        """The inverse of `flat`."""
        return matrix if self.operator.transposed else matrix.t().reshape(self.weight.shape)

    def batched(self, tensor: Tensor) -> Tensor:
        """An input or output with a dimension for samples: convolutions take single samples without one."""
        return tensor[None] if tensor.ndim == self.operator.spatial + 1 and self.operator.spatial else tensor

    def chunks(self, x: Tensor, max_values: int) -> Iterator[slice]:
        """Samples of an input (rows of a matrix product's) whose rows together hold about max_values entries."""
        count, rows = (len(x), 1) if self.operator.spatial else (x.numel() // x.shape[-1], 1)
        if self.operator.spatial:
            rows = math.prod(self._patches(x[:1]).shape[1 : 1 + self.operator.spatial])
        step = max(1, max_values // max(rows * self.d_in, 1))
        return (slice(start, min(start + step, count)) for start in range(0, count, step))

    def input_rows(self, x: Tensor, group: int = 0, picked: Tensor | None = None) -> Tensor:
        """A: the rows of one group that an input gives, or those of them that are picked."""
        if not self.operator.spatial:
            A = x.reshape(-1, x.shape[-1])
            return A if picked is None else A[picked]
        patches = self._patches(self.part(x, group, 1))  # (samples, positions …, d_in …)
        if picked is None:
            return patches.flatten(self.operator.spatial + 1).flatten(0, -2)
        places = torch.unravel_index(picked, patches.shape[: self.operator.spatial + 1])
        return patches[places].flatten(1)

    def output_rows(self, z: Tensor, group: int = 0, picked: Tensor | None = None) -> Tensor:
        """The rows of one group of an output, in the order of those of the input."""
        if self.operator.spatial:
            z = self.part(z, group, 1).movedim(1, -1)
        rows = z.reshape(-1, z.shape[-1])
        return rows if picked is None else rows[picked]

    def _patches(self, x: Tensor) -> Tensor:
        """What meets the kernel at every position: a view (samples, positions …, channels, kernel …)."""
        kernel, op = self.weight.shape[2:], self.operator
        x = F.pad(x, op.pad_of(kernel)) if any(op.pad_of(kernel)) else x
        for i in range(op.spatial):
            reach = op.dilation[i] * (kernel[i] - 1) + 1
            x = x.unfold(2 + i, reach, op.stride[i])[..., :: op.dilation[i]]
        return x.movedim(1, 1 + op.spatial)


def _is_transposed(module: Any) -> bool:
    """Whether this is the Conv1D of transformers: a Linear that holds its weight as (d_in, d_out)."""
    weight = getattr(module, "weight", None)
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf") and isinstance(weight, Tensor)


def padding_of(conv: nn.Conv2d) -> list[int]:
    """left, right, top, bottom, as F.pad wants them."""
    return Operator(2, padding=conv.padding, dilation=conv.dilation).pad_of(conv.kernel_size)
