"""What every training run needs: settings, optimisers, seeds, threads, processes, and steps as CUDA graphs."""

import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from feta.calibration.copies import copied
from feta.calibration.model import device_of, outputs_of, run_on
from feta.errors import ConfigError, ModelError
from feta.gates import Shared

Loss = Callable[[Any, Any], Tensor]
Settings = TypeVar("Settings")
NARROW = (torch.float16, torch.bfloat16)  # too coarse for small steps
LARGE = 2**24  # parameters, from which on a step takes longer than its launches
CHECKED = 3  # recorded calls of code of users that are compared with plain ones


def overridden(kind: type[Settings], settings: Settings | None, **given: float | None) -> Settings:
    """The settings, or the defaults of their kind, with the arguments that were given in their place."""
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(settings or kind(), **changes)  # type: ignore[type-var]


def generator_of(seed: int, number: int) -> torch.Generator:
    """Random numbers for the order of the rows in a pass, drawn from (seed, number of the pass)."""
    return torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**63)


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


def recordable(model: nn.Module) -> bool:
    """Whether all modules are torch's own: code of users may read or draw values in Python, which a graph freezes."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return all(
        type(module).__module__.startswith("torch.nn.modules.")
        and not any(getattr(module, kind) for kind in hooks)
        and getattr(module, "momentum", 0) is not None  # such a batch-norm reads its counter
        for module in model.modules()
    )


def repeats(model: nn.Module, batches: Iterable[Tensor]) -> bool:
    """Whether a recorded call of the model gives its outputs on several batches: so does code of users, as a rule."""
    recorder = Recorder(lambda x: outputs_of(run_on(model, x)), checked=CHECKED)
    with torch.no_grad():
        for x in batches:
            recorder(x)
    return recorder.graph is not None


def in_halves(model: nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """Runs of large networks in bfloat16 where a GPU has it: several times as many steps in the time."""
    large = sum(parameter.numel() for parameter in model.parameters()) >= LARGE
    if device.type == "cuda" and large and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)
    return nullcontext()


_RECORDING = threading.Lock()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Inside, no older graph is freed, which makes a recording fail: garbage is collected before, and not inside.

    One recording at a time: the end of another would switch collecting on again.
    """
    with _RECORDING:
        collecting = gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()


class Recorder:
    """Calls a function of tensors, by a recorded CUDA graph if their shapes are those of the first call.

    A graph repeats what it recorded: a value that changes between two calls, such as the learning rate, must be a
    tensor on the device. If the recording fails, every call goes to the function, and `failure` says why.

    function: changes tensors in place; the tensor it returns, if any, is overwritten by the next call.
    warm_up: calls before the recording, which make buffers and load libraries; with math.inf nothing is recorded.
    checked: calls by the graph whose result is compared with the function's, which must change nothing then.
    """

    def __init__(self, function: Callable[..., Any], warm_up: float = 1, checked: int = 0) -> None:
        self.function, self.warm_up, self.checked, self.failure = function, warm_up, checked, ""
        self.graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._result: Any = None

    def __call__(self, *inputs: Tensor) -> Any:
        self._inputs = self._inputs or tuple(torch.empty_like(value) for value in inputs)
        pairs = list(zip(self._inputs, inputs, strict=True))
        if self.warm_up > 0 or self.failure or any(held.shape != value.shape for held, value in pairs):
            self.warm_up -= 1
            return self.function(*inputs)
        for held, value in pairs:
            held.copy_(value)
        if self.graph is None:
            self._record()
        if self.graph is None:
            return self.function(*inputs)
        self.graph.replay()
        if self.checked:
            self.checked -= 1
            truth = self.function(*inputs)
            if not torch.allclose(self._result, truth, rtol=1e-3, atol=1e-3 * float(truth.abs().max())):
                self.graph, self.failure = (
                    None,
                    "a recorded call gave another result",
                )
                return truth
        return self._result

    def _record(self) -> None:
        """Record the function on the held inputs, which computes nothing yet."""
        with _undisturbed():
            graph = torch.cuda.CUDAGraph()
            try:
                torch.cuda.synchronize()
                # What other threads do with the GPU in the meantime is no concern of this recording.
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    self._result = self.function(*self._inputs)
                self.graph = graph
            except RuntimeError as error:  # memory that is full among them: the function needs less than its record
                torch.cuda.synchronize()
                self._result, self.failure = None, str(error).splitlines()[0]
