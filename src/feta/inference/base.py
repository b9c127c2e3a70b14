"""What all layers for inference have in common.

They give the outputs of the layer they were made of, copy, save, load and move between devices, and refuse training.
On a device or in a dtype that a kernel does not know, they use dense weights, made at the first call there.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NoReturn, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feta.errors import ModelError


class ForInference(nn.Module):
    """A layer without gradients. What it works out at its first call is lost when it is copied, moved or loaded."""

    _feta_inference = True  # what feta.layers.refuse_sparsified knows it by

    def __init__(self) -> None:
        super().__init__()
        super().train(False)
        self._plan: Any = None

    def train(self, mode: bool = True) -> Self:
        if mode:
            refuse_training()
        return super().train(mode)

    def held(self) -> Iterable[Tensor]:
        """Tensors that were made at the first call and take memory beside the buffers."""
        return ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}

    def _apply(self, *args: Any, **options: Any) -> Self:
        self._plan = None
        super()._apply(*args, **options)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        self._plan = None
        super()._load_from_state_dict(*args, **options)


class ForLinear(ForInference, ABC):
    """A layer in the place of one Linear: its bias, and the buffers that a form has for its weights."""

    bias: Tensor | None

    def __init__(self, layer: nn.Linear, **parts: Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        for name, part in parts.items():
            self.register_buffer(name, part)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())

    @abstractmethod
    def dense(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias as those of an nn.Linear."""

    @property
    def weight(self) -> Tensor:
        """The dense weight: computed, for code that looks at it."""
        return self.dense()[0]

    @abstractmethod
    def fast(self, x: Tensor, plan: Any) -> Tensor:
        """The layer's outputs, by what `plan` gave."""

    @abstractmethod
    def plan(self) -> Any:
        """What `fast` needs; None where it cannot work on this device or in this dtype."""

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            refuse_training()
        if self._plan is None:
            made = self.plan()
            self._plan = _Dense(*self.dense()) if made is None else made
        plan = self._plan
        if isinstance(plan, _Dense):
            return F.linear(x, plan.weight, plan.bias)
        check_features(x, self.in_features)
        return self.fast(x, plan)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


class _Dense:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias


def check_features(x: Tensor, features: int) -> None:
    if x.shape[-1:] != (features,):
        raise ModelError(f"inputs of this layer must have {features} features, got the shape {tuple(x.shape)}")


def refuse_training() -> NoReturn:
    raise ModelError(
        "a sparsified model must be used for inference alone, got a request to train it; "
        "train the model it was made of and call feta.sparsify again"
    )
