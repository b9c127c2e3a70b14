"""A device whose memory is full: told as what would fit, by an error that holds on to nothing."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from feta.calibration.model import device_of
from feta.errors import FetaError, one_line

Given = ParamSpec("Given")
Found = TypeVar("Found")


class MemoryShortError(FetaError, torch.OutOfMemoryError):
    """The work did not fit into a device's memory; what was given is as it was."""


def telling_what_fits(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """A function of a model, whose torch.OutOfMemoryError becomes a MemoryShortError."""

    @wraps(function)
    def told(*args: Given.args, **given: Given.kwargs) -> Found:
        try:
            return function(*args, **given)
        except torch.OutOfMemoryError as error:
            said = one_line(error)
        # Raised out here: the other error's traceback would keep all tensors of the work that failed.
        torch.cuda.empty_cache()
        raise MemoryShortError(_advice(said, args[0] if args else given.get("model"), given.get("device")))

    return told


def _advice(said: str, model: Any, device: Any) -> str:
    home = device_of(model) if isinstance(model, torch.nn.Module) else torch.device("cpu")
    where = torch.device(device) if device is not None else home
    weights = sum(p.numel() * p.element_size() for p in model.parameters()) if hasattr(model, "parameters") else 0
    free = torch.cuda.mem_get_info(where)[0] if where.type == "cuda" and torch.cuda.is_available() else None
    room = "" if free is None else f", of which {free / 2**30:.1f} GiB are free now"
    # Beside the copy that is pruned, half of what is left: activations are not feta's to count.
    left = None if free is None else max(0.25, (free - weights) / 2 / 2**30)
    limit = "'4GiB'" if left is None else f"'{left:.2g}GiB'"
    apart = "let the model stay on the CPU (device='cuda'): its blocks go to the GPU one at a time"
    more = apart if "cuda" in (home.type, where.type) else "fewer samples (n_samples=)"
    return (
        f"the work must fit into the memory of {where}, got out of it{room}; the model is as it was. Its weights are "
        f"{weights / 2**30:.2g} GiB, held twice. Give feta.Settings(memory={limit}, batch_size=…) with smaller "
        f"batches, or {more} ({said})"
    )
