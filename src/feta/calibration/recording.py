"""One forward pass, noted down: every module, and every function with the values it read and wrote."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from feta.calibration.inputs import Batch, size_of
from feta.calibration.model import call, device_of, evaluating, float_dtype, place, run_on, several_outputs
from feta.calibration.notes import TRANSPARENT, Note, Recording, Value, Visit
from feta.calibration.operators import attention, name_of, reading_of
from feta.errors import DataError, FetaError


def record(model: nn.Module, batch: Batch) -> Recording:
    """Run a model on a batch and note everything; hooks are on for that long. Raises DataError if it fails."""
    batch = place(batch, device_of(model), float_dtype(model))
    mode = _Notes(model)
    with ExitStack() as stack, evaluating(model), torch.no_grad():
        for name, module in model.named_modules():
            hooks = (module.register_forward_pre_hook, mode.enter), (module.register_forward_hook, mode.leave)
            for register, hook in hooks:
                stack.enter_context(register(partial(hook, name), with_kwargs=True))
        inputs = [mode.value(tensor) for tensor in tensors_in(batch)]
        with running(batch, mode), mode:
            result = run_on(model, batch)
    given_back = list(tensors_in(result)) or list(tensors_in(getattr(result, "__dict__", {})))
    outputs = [mode.value(tensor) for tensor in given_back]
    return Recording(model, mode.notes, mode.visits, inputs, outputs, size_of(batch), several_outputs(result))


@contextmanager
def running(batch: Batch, notes: "_Notes | None" = None) -> Iterator[None]:
    """Inside, an error of the user's model on the user's batch becomes a DataError, which says where it was noted."""
    try:
        yield
    except (FetaError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise DataError(_refusal(batch, notes.modules[-1:] if notes else (), error)) from error


@contextmanager
def running_on(batches: Iterable[Batch], *models: nn.Module) -> Iterator[None]:
    """Inside, an error becomes a DataError where it is one of the models' on one of the user's batches."""
    try:
        yield
    except (FetaError, torch.OutOfMemoryError):
        raise
    except Exception:
        for batch in batches:
            for model in models:
                with running(batch), torch.no_grad():
                    call(model, batch)
        raise


def _refusal(batch: Batch, modules: Sequence[str], error: Exception) -> str:
    """What a model was given, where it stopped, and why."""
    parts = batch.items() if isinstance(batch, Mapping) else [("", batch)]
    shapes = [f"{k} {_shape(v, batch)} {v.dtype}".strip() for k, v in parts if isinstance(v, Tensor)]
    where = f"layer '{modules[0]}'" if any(modules) else "the model"
    said = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return (
        f"data must be batches that the model can run on, samples as rows, got samples of {', '.join(shapes)}, on "
        f"which {where} fails: {said}{cure_of([v for _, v in parts if isinstance(v, Tensor)], said)}"
    )


def _shape(part: Tensor, batch: Batch) -> str:
    """Of one sample; of what has another number of rows, and so came as a whole, all of it."""
    if part is batch or (part.ndim and len(part) == size_of(batch)):
        return str(tuple(part.shape[1:]))
    return f"{tuple(part.shape)} (all of it, as it has no row for each sample)"


def cure_of(given: Sequence[Tensor], said: str) -> str:
    """For inputs under other names than the model's, and for numbers of a kind that a layer cannot take."""
    if "required positional argument" in said or "unexpected keyword argument" in said:
        return "; give dicts with the names in the model's forward, such as {'x': …, 'mask': …}"
    if "index out of range" in said:
        return "; tokens must be less than the number of rows of the model's table"
    dims = given[0].ndim if len(given) == 1 else 0
    if dims == 1 or (dims == 3 and re.search(r"weight of size \[(\d+, ){3}\d+\].* channels", said)):
        labels = dims == 1 and not given[0].is_floating_point()
        first = "; if these are labels, put the inputs first: (inputs, labels)" if labels else ""
        return f"; of samples that come one by one make batches: torch.stack(samples), or a DataLoader{first}"
    if not any(word in said.lower() for word in ("type", "byte", "long")):
        return ""
    if "indices" in said:
        return "; tokens must be int64: data.long()"
    whole = any(not tensor.is_floating_point() for tensor in given)
    return "; it takes floats: images / 255, or data.float()" if whole else ""


class _Notes(TorchFunctionMode):
    """Notes every function that is called, functional calls included, and every module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.notes: list[Note] = []
        self.visits: list[Visit] = []
        self.modules: tuple[str, ...] = ()
        self.attending = False  # inside torch's attention, whose tensors have positions first
        self.parameters = frozenset(id(parameter) for parameter in model.parameters())
        self.numbers = WeakIdKeyDictionary()  # tensor -> its number: an id may come again once a tensor is gone
        self.written: dict[int, int] = {}  # number -> how often in place

    def value(self, tensor: Tensor) -> Value:
        number: int = self.numbers.setdefault(tensor, len(self.written))
        return number, self.written.setdefault(number, 0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            self.attending = True
            try:
                return attention(self, args, kwargs)
            finally:
                self.attending = False
        reading = reading_of(func, args, kwargs)
        given = ([reading.input] if reading else []) + list(tensors_in((args, kwargs)))
        reads = [self.value(tensor) for tensor in given]
        result = func(*args, **kwargs)
        name, tensors = name_of(func), list(tensors_in(result))
        if not tensors:
            return result
        for tensor in tensors:
            if name not in TRANSPARENT and any(tensor is one for one in given):  # in place
                self.written[self.value(tensor)[0]] += 1
        note = Note(
            name,
            reads,
            [self.value(tensor) for tensor in tensors],
            [tensor.shape for tensor in given],
            tensors[0].shape,
            self.modules,
            len(args) == len(given) == 2 and not kwargs,
            self.parameters.intersection(map(id, given)).difference(map(id, tensors)),  # a cast may change nothing
        )
        if reading is not None:
            note.operator, note.weight = replace(reading.operator, time_first=self.attending), id(reading.weight)
            note.bias = None if reading.bias is None else self.value(reading.bias)
        if name.removesuffix("_") == "leaky_relu" and kwargs.get("negative_slope", *args[1:2] or [0.01]) != 0.01:
            note.name = "leaky_relu of another slope"
        if name.startswith("hardtanh") and (kwargs.get("min_val", -1.0), kwargs.get("max_val", 1.0)) == (0, 6):
            note.name = "relu6"  # as nn.ReLU6 calls it
        self.notes.append(note)
        return result

    def enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        first = next(tensors_in((args, kwargs)), None)
        self.visits.append(Visit(name, self.modules, None if first is None else self.value(first)))
        self.modules += (name,)

    def leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self.modules = self.modules[:-1]
        visit = next(visit for visit in reversed(self.visits) if visit.name == name and visit.open)
        several = isinstance(output, tuple | list)
        first = output[0] if several and output else output
        visit.gave = self.value(first) if isinstance(first, Tensor) else None
        visit.width, visit.open = len(output) if several else 0, False


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | Mapping):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(part)
