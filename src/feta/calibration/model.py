"""The one door to a user's model: where it lives, how it is called, and which tensor is its output."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from feta.errors import ModelError
from feta.gates import Shared, check_device

MAIN_OUTPUTS = frozenset({"logits", "last_hidden_state"})  # what others call the output beside which more is returned


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def float_dtype(model: nn.Module) -> torch.dtype:
    """The type of the model's first float parameter."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def resolve_device(name: str | None, where: str = "device") -> str:
    """The device asked for, by default the GPU if there is one. Raises ConfigError if torch cannot use it here."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    check_device(name, where)
    return name


def clock(device: torch.device) -> float:
    """Seconds, read after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def place(value: Any, device: torch.device, dtype: torch.dtype, *, copy: bool = True) -> Any:
    """A batch on the device and, for float tensors, in the dtype; mappings entry by entry.

    By default always a copy: a model that normalises its input in place must not change the caller's data.
    """
    if isinstance(value, Mapping):
        return {key: place(part, device, dtype, copy=copy) for key, part in value.items()}
    if not isinstance(value, Tensor):
        return value
    kind = dtype if value.is_floating_point() else value.dtype
    return value.detach().to(device, kind, non_blocking=True, copy=copy)


def run_on(model: nn.Module, batch: Any) -> Any:
    """Call the model: a mapping becomes its keyword arguments."""
    return model(**batch) if isinstance(batch, Mapping) else model(batch)


def call(model: nn.Module, batch: Any, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Any:
    """Run the model on a copy of a batch, by default on the model's own device and in its dtype."""
    return run_on(model, place(batch, device or device_of(model), dtype or float_dtype(model)))


def outputs_of(result: Any) -> Tensor:
    """The output among what a model returns: the tensor itself, its `logits`, or else the first float tensor.

    A number without dimensions is no output of samples: a loss that is returned beside them is passed over.
    """
    if isinstance(result, Tensor):
        if not result.ndim:
            raise ModelError("model must return outputs with samples as rows, got a single number, as a loss is")
        return result
    logits = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    parts = result if isinstance(result, Mapping | tuple | list) else getattr(result, "__dict__", {})
    values = list(parts.values() if isinstance(parts, Mapping) else parts)
    for value in values:
        if _has_rows(value):
            return value  # type: ignore[no-any-return]
    for value in values:
        if isinstance(value, Mapping | tuple | list):
            with suppress(ModelError):
                return outputs_of(value)
    raise ModelError(
        f"model must return a float tensor with samples as rows, or a tuple, list or mapping that holds one, got "
        f"{type(result).__name__}"
    )


def several_outputs(result: Any) -> bool:
    """Whether a model returns more float tensors than the one that `outputs_of` takes, none of them the main one.

    What lies deeper than that one, such as a hidden state beside an output, does not count.
    """
    if isinstance(result, Tensor):
        return False
    parts = result if isinstance(result, Mapping | tuple | list) else getattr(result, "__dict__", {})
    if isinstance(parts, Mapping):
        if not MAIN_OUTPUTS.isdisjoint(key for key in parts if isinstance(key, str)):
            return False
        parts = list(parts.values())
    here = sum(map(_has_rows, parts))
    if here:
        return here > 1
    deeper = [part for part in parts if isinstance(part, Mapping | tuple | list)]
    return any(map(several_outputs, deeper)) or sum(_has_floats(part) for part in deeper) > 1


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 0


def _has_floats(result: Any) -> bool:
    if isinstance(result, Tensor):
        return _has_rows(result)
    parts = result.values() if isinstance(result, Mapping) else result if isinstance(result, tuple | list) else ()
    return any(map(_has_floats, parts))


@contextmanager
def restoring(modules: Iterable[nn.Module], *names: str) -> Iterator[None]:
    """Attributes of modules as they were, whatever happens inside."""
    before = [(module, name, getattr(module, name)) for module in modules for name in names]
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Models in eval mode inside, each module's own mode restored after."""
    with restoring([module for model in models for module in model.modules()], "training"):
        for model in models:
            model.eval()
        yield


_FUSED = Shared(torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled)


@contextmanager
def fused_attention_off() -> Iterator[None]:
    """Inside, torch's transformer layers run step by step: their fused form skips the layers they are made of."""
    with _FUSED:
        torch.backends.mha.set_fastpath_enabled(False)
        yield


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Inside, a model in eval mode can be run backwards, which cuDNN refuses for recurrent layers."""
    # They are put into training mode without their dropout, which leaves the function the same.
    recurrent = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    with restoring(recurrent, "training", "dropout"):
        for module in recurrent:
            module.training, module.dropout = True, 0.0
        yield
