"""How a run of `prune` works inside: what few people change."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from feta.errors import ConfigError, check_fields, shown, unknown_name
from feta.gates import gated
from feta.problem import Activation

Mode = Literal["cascade", "parallel"]
Cache = Literal["auto", "replay", "disk", "memory"]
Loss = Literal["kl", "mse", "cosine"]
Data = Literal["auto", "shared", "sharded", "alone"]
MEASURE = "measure"  # the phase before the layers
PHASES = {  # of our solvers, in words
    "support": "choosing the weights that stay",
    "retarget": "fitting the weights that stay",
    "search": "searching for the number of weights",
    "remove": "removing weights",
}
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?)[bB]\s*")


@gated
@dataclass(frozen=True)
class Settings:
    """How a run of `prune` works inside.

    mode: "cascade": each layer is fitted to its inputs in the network pruned so far, so that errors do not add
        up. "parallel": to its inputs in the original, so that layers are independent of each other.
    activation: what follows the layers ("relu", "linear", "gelu", …, see Activation), or {layer pattern: …}; None:
        found by tracing the model.
    batchnorm: whether the batch-norm statistics of the pruned model are estimated anew; None: if that brings its
        outputs nearer to the original's on held-out samples.
    n_samples: how many samples of the data are used; None: all of them.
    batch_size: how many rows of a tensor run at once; None: as many as run well, and small batches of a loader are
        put together.
    cache: where samples, states and rows wait between passes. "auto": on the device up to `memory`, then as much in
        the CPU's memory, then in a file; rows that would not fit are made again by running a part of the network.
        "disk" keeps all in a file, "memory" all on the device, "replay" nothing: the network runs from its start.
    memory: what a run may take beyond the two networks, about: "4GiB", "512MB", or a number of GiB. It decides what
        waits in a file, how many samples run at once, the chunks of rows, and when feta solves without a Gram
        matrix. None: 2 GiB for each thing that waits, on the device and again in the CPU's memory. Less than 256
        MiB is not kept: what a layer's solver cannot do without stays.
    reorder: whether inputs of layers may change places before a pattern N:M is found, together with the outputs of
        the layer before: the network's function stays, its weights are in other places.
    loss: what the fits of an effort match, "kl", "mse" or "cosine"; None: by what the model returns.
    data: in a job of many processes (torch.distributed). "shared": every process is given the same data and works on
        its share. "sharded": every process is given samples of its own. "alone": this process prunes by itself.
        "auto": sharded if the data is a loader with a DistributedSampler, otherwise shared.

    Raises ConfigError for a value outside of these.
    """

    mode: Mode = "cascade"
    activation: str | Mapping[str, str] | None = None
    batchnorm: bool | None = None
    n_samples: int | None = None
    batch_size: int | None = None
    cache: Cache = "auto"
    memory: float | str | None = None
    loss: Loss | None = None
    reorder: bool = True
    data: Data = "auto"

    def __post_init__(self) -> None:
        check_fields(self, ">= 1", "n_samples", "batch_size")
        parse_memory(self.memory)
        given = self.activation
        for name in given.values() if isinstance(given, Mapping) else [] if given is None else [given]:
            parse_activation(name)


def parse_memory(given: float | str | None) -> float | None:
    """Bytes. Raises ConfigError for what is no size."""
    if given is None:
        return None
    found = SIZE.fullmatch(given) if isinstance(given, str) else None
    if isinstance(given, int | float) and given >= 0:
        return given * 2**30
    if found is None:
        raise ConfigError(
            f"Settings.memory must be a size such as '4GiB' or a number of GiB >= 0, got {shown(given)}"
        )
    unit: int = (1024 if found[3] else 1000) ** " kmgt".index(found[2].lower() or " ")
    return float(found[1]) * unit


def parse_activation(name: str) -> Activation:
    """An activation by its name. Raises ConfigError for one that is not known."""
    if name not in list(Activation):
        raise unknown_name("activation", str(name), list(Activation))
    return Activation(name)


@dataclass(frozen=True)
class PruneEvent:
    """Progress of a run, for callbacks: a layer starts, reports a step of its solve, or is done."""

    kind: Literal["start", "step", "done"]  # of event
    layer: str  # its name
    index: int  # of the layer among those to prune
    total: int  # how many are to be pruned
    phase: str = ""  # of a step: of the layer's solve, "measure" before the layers, "refine" after them
    values: Mapping[str, float] = field(default_factory=dict)  # of a step, by name, such as the loss


Callback = Callable[[PruneEvent], None]


@dataclass
class Measuring:
    """Tells a callback which layer is measured; an error of the callback's own, which ends the run, is `stopped`."""

    callback: Callback | None
    stopped: Exception | None = None

    def __call__(self, layer: str, index: int, total: int) -> None:
        try:
            if self.callback is not None:
                self.callback(PruneEvent("step", layer, index, total, MEASURE))
        except Exception as error:
            self.stopped = error
            raise


def on_bar(event: PruneEvent) -> dict[str, Any]:
    """What a bar shows of an event."""
    if event.phase == MEASURE:
        note = f"measuring how much each layer can spare: {event.index + 1} of {event.total}, {event.layer}"
        return {"completed": 0, "total": event.total, "note": note}
    if event.index < event.total:
        done, phase = event.index + (event.kind == "done"), PHASES.get(event.phase, event.phase)
        return {"completed": done, "total": event.total, "note": f"{event.layer}{': ' * bool(phase)}{phase}"}
    # Plus zero, since a distance of a network from itself may be -0.
    values = ", ".join(f"{name} {value + 0.0:.4g}" for name, value in event.values.items())
    return {"completed": event.total, "total": event.total, "note": f"fitting the whole network, {values}"}
