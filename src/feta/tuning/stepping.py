"""What every training run needs: settings, optimisers, seeds, threads and processes."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from feta.calibration.copies import copied
from feta.calibration.model import device_of
from feta.errors import ConfigError, ModelError
from feta.gates import Shared
from feta.tuning.recorder import recordable

Loss = Callable[[Any, Any], Tensor]
Settings = TypeVar("Settings")
NARROW = (torch.float16, torch.bfloat16)  # too coarse for small steps
LARGE = 2**24  # parameters, from which on a step takes longer than its launches


def overridden(kind: type[Settings], settings: Settings | None, **given: float | None) -> Settings:
    """The settings, or the defaults of their kind, with the arguments that were given in their place."""
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(settings or kind(), **changes)  # type: ignore[type-var]


def learning(model: nn.Module) -> list[nn.Parameter]:
    """The parameters to train; ModelError if there are none."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ModelError("model must have parameters with requires_grad, got none")
    return parameters


def rate_on(device: torch.device, rate: float) -> float | Tensor:
    """A learning rate for an optimiser: on a GPU a tensor, which recorded steps read anew."""
    return torch.tensor(rate, device=device) if device.type == "cuda" else rate


def sgd(model: nn.Module, device: torch.device, rate: float, momentum: float, decay: float = 0.0) -> torch.optim.SGD:
    """SGD with weight decay on the parameters that learn."""
    # A fused step wants a gradient for all parameters or none; code of users may leave some out at first.
    fused = device.type in ("cpu", "cuda") and recordable(model)
    return torch.optim.SGD(learning(model), rate_on(device, rate), momentum, weight_decay=decay, fused=fused)


def wake_up() -> None:
    """Make torch load its compiler, a second's work at a process's first optimiser, before time is taken."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)


_THREADS = Shared(torch.get_num_threads, torch.set_num_threads)


@contextmanager
def threads_for(model: nn.Module) -> Iterator[None]:
    """One thread for small dense networks, where sharing out the work costs more than doing it."""
    parameters = list(model.parameters())
    small = sum(p.numel() for p in parameters) < 1_000_000 and all(p.ndim <= 2 for p in parameters)
    with _THREADS as threads:
        torch.set_num_threads(1 if small else threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)  # of this thread, and of those that begin now


def copy_of(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy of the model on the device, in a distributed wrapper of the same settings if it has one."""
    if not isinstance(model, DistributedDataParallel):
        return copied(model).to(device)
    if device != device_of(model):
        raise ConfigError(f"device must be the wrapped model's, got {device} for {device_of(model)}")
    # Torch warns about this argument whenever it is given, whatever its value.
    buffers: dict[str, Any] = {} if model.broadcast_buffers else {"broadcast_buffers": False}
    wrapper = DistributedDataParallel(
        copied(model.module),
        device_ids=model.device_ids,
        process_group=model.process_group,
        **buffers,
        find_unused_parameters=model.find_unused_parameters,
        gradient_as_bucket_view=model.gradient_as_bucket_view,
    )
    wrapper.training = model.training
    return wrapper


def in_halves(model: nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """Runs of large networks in bfloat16 where a GPU has it: several times as many steps in the time."""
    large = sum(parameter.numel() for parameter in model.parameters()) >= LARGE
    if device.type == "cuda" and large and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)
    return nullcontext()
