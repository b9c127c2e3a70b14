"""Work of a GPU recorded as CUDA graphs, which repeat it without the time that launches take."""

import gc
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.model import outputs_of, run_on
from feta.gates import AT_WORK

CHECKED = 3  # recorded calls of code of users that are compared with plain ones


class Crowded(RuntimeError):
    """Other threads are at work: nothing can be recorded now."""


@contextmanager
def recording() -> Iterator[torch.cuda.CUDAGraph]:
    """Record what is launched inside, which computes nothing yet.

    An older graph that is freed makes a recording fail: garbage is collected before, and not inside. While one thread
    records, CUDA lets no other wait for the GPU, so a recording needs that no other thread is at work, and one that
    wants to begin waits until it is over. Raises Crowded where others are at work already.
    """
    with AT_WORK.alone() as alone:
        if not alone:
            raise Crowded("other threads are at work")
        collecting = gc.isenabled()
        gc.collect()
        gc.disable()
        usual = torch.cuda.current_stream()
        try:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                yield graph
        except RuntimeError:
            torch.cuda.set_stream(usual)  # torch leaves the stream of a recording that failed in its place
            torch.cuda.synchronize()
            raise
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
                self.graph, self.failure = None, "a recorded call gave another result"
                return truth
        return self._result

    def _record(self) -> None:
        try:
            with recording() as graph:
                self._result = self.function(*self._inputs)
            self.graph = graph
        except Crowded:  # slower, and nothing to warn of
            self.warm_up = math.inf
        except RuntimeError as error:  # memory that is full among them: the function needs less than its record
            self._result, self.failure = None, str(error).splitlines()[0]


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
