"""A Linear without its dead inputs and outputs: a smaller dense product.

An input whose weights are all zero is not read; an output whose weights are all zero is its bias.
"""

from typing import Any

from torch import Tensor, nn

from feta.inference.base import ForLinear


class TrimmedLinear(ForLinear):
    """The product of what is left, put back into its places."""

    small: Tensor
    inputs: Tensor
    outputs: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        weight = layer.weight.detach()
        inputs, outputs = ((weight != 0).any(dim).nonzero().flatten() for dim in (0, 1))
        super().__init__(layer, small=weight[outputs][:, inputs].contiguous(), inputs=inputs, outputs=outputs)

    def dense(self) -> tuple[Tensor, Tensor | None]:
        weight = self.small.new_zeros(self.out_features, self.in_features)
        return weight.index_put((self.outputs[:, None], self.inputs), self.small), self.bias

    def plan(self) -> Any:
        return True  # torch does it on every device

    def fast(self, x: Tensor, plan: Any) -> Tensor:
        if len(self.inputs) < self.in_features:
            x = x.index_select(-1, self.inputs)
        if len(self.outputs) == self.out_features:
            return nn.functional.linear(x, self.small, self.bias)
        y = x.new_zeros(*x.shape[:-1], self.out_features)
        y.index_copy_(-1, self.outputs, nn.functional.linear(x, self.small))
        return y if self.bias is None else y + self.bias


def is_trimmable(weight: Tensor) -> bool:
    """Whether a matrix has an input or an output to leave out, and something to keep."""
    used = weight != 0
    alive = int(used.any(0).sum()), int(used.any(1).sum())
    return min(alive) > 0 and alive != (weight.shape[1], weight.shape[0])
