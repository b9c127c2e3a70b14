"""CUDA graphs: a function of tensors, recorded once and replayed. Small networks wait for launches, not kernels."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Recorder:
    """Calls a function of tensors, by a recorded CUDA graph if their shapes are those of the first call.

    A graph repeats what it recorded: a value that changes between two calls, such as the learning rate, must be
    a tensor on the device. If the recording fails, every call goes to the function, and `failure` says why.

    function: changes tensors in place; the tensor it returns, if any, is overwritten by the next call.
    warm_up: calls of the function before the recording. They make buffers and load libraries, which is not
        allowed during a recording.
    """

    def __init__(self, function: Callable[..., Any], warm_up: int = 1) -> None:
        self.function, self.warm_up, self.failure = function, warm_up, ""
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
        return self._result

    def _record(self) -> None:
        """Record the function on the held inputs, which computes nothing yet."""
        graph, collecting = torch.cuda.CUDAGraph(), gc.isenabled()
        # Collected before, and not inside: an older graph that is freed during a recording makes it fail.
        gc.collect()
        gc.disable()
        try:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                self._result = self.function(*self._inputs)
            self.graph = graph
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.failure = str(error).splitlines()[0]
        finally:
            if collecting:
                gc.enable()
