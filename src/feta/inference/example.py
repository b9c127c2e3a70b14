"""The example a model is called with: a tensor, a tuple of arguments, or a dict of keyword arguments."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.recording import tensors_in
from feta.errors import ConfigError, ModelError

Example = Tensor | tuple[Any, ...] | dict[str, Any]


def called(model: nn.Module, example: Example) -> Any:
    if isinstance(example, dict):
        return model(**example)
    return model(*example) if isinstance(example, tuple) else model(example)


def size_of(example: Example) -> int:
    """The number of samples: the first dimension of the first tensor."""
    first = next(tensors_in(example), None)
    if first is None or first.ndim == 0 or len(first) == 0:
        raise ConfigError("sparsify.example must hold a tensor of samples, got none")
    return len(first)


def of_size(example: Example, batch: int) -> Example:
    """The example with `batch` samples: cut, or repeated."""
    old = size_of(example)

    def resized(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.ndim == 0 or len(value) != old:
            return value
        return value[torch.arange(batch, device=value.device) % old].contiguous()

    if isinstance(example, dict):
        return {name: resized(value) for name, value in example.items()}
    return tuple(map(resized, example)) if isinstance(example, tuple) else resized(example)


def observed(model: nn.Module, examples: Mapping[int, Example]) -> dict[nn.Module, dict[int, Tensor]]:
    """An input for each batch size of every Linear and Conv2d that is called and has no hooks: of its first call.

    Layers that get nested tensors, as those of nn.TransformerEncoder do of padded texts, are left out.

    Numbers are drawn anew: shapes decide how fast a layer is, and holding all activations would take memory.
    """
    found: dict[nn.Module, dict[int, Tensor]] = {}
    layers = [module for module in model.modules() if type(module) in (nn.Linear, nn.Conv2d) and not hooked(module)]
    for batch, example in examples.items():

        def note(module: nn.Module, args: tuple[Any, ...], batch: int = batch) -> None:
            plain = args and isinstance(args[0], Tensor) and not args[0].is_nested
            if plain and batch not in found.get(module, {}):
                found.setdefault(module, {})[batch] = torch.randn_like(args[0], memory_format=torch.contiguous_format)

        hooks = [layer.register_forward_pre_hook(note) for layer in layers]
        try:
            with torch.inference_mode():
                called(model, example)
        except Exception as error:
            raise ModelError(f"the model must run on the example with {batch} samples, got: {error}") from error
        finally:
            for hook in hooks:
                hook.remove()
    return {layer: inputs for layer, inputs in found.items() if len(inputs) == len(examples)}


def hooked(module: nn.Module) -> bool:
    """Whether something is called with a module, which would be lost with it."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def outputs(value: Any) -> Iterator[Tensor]:
    """The floating-point tensors among what a model returns."""
    return (tensor for tensor in tensors_in(value) if tensor.is_floating_point())
