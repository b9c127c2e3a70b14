"""After the layers: batch-norms settled, the result compared with the original, sizes counted, the user warned."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.batchnorm import norms_of, reestimate, statistics_of
from feta.calibration.inputs import Batch, Inputs
from feta.calibration.lane import Lane
from feta.calibration.model import call, outputs_of, restoring
from feta.calibration.trace import LayerTrace
from feta.engine.run import Run
from feta.engine.shards import WHOLE, Shards
from feta.errors import warn
from feta.layers import owner_of
from feta.pages.words import counted
from feta.problem import Status
from feta.report import PruneReport, Size
from feta.sparsity import stored_size

FULLER = 1.05  # times as many weights that are not zero, which does not come of biases alone


class PruneWarning(UserWarning):
    """A run whose result should be looked at before it is used."""


@dataclass
class Stages:
    """Seconds of the stages of a run, one after the other without a gap."""

    started: float
    clock: Callable[[], float]
    parts: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.last = self.started

    def since(self) -> float:
        """Seconds from the start until now."""
        return self.clock() - self.started

    def end(self, name: str) -> None:
        now = self.clock()
        self.parts[name] = self.parts.get(name, 0.0) + now - self.last
        self.last = now


@torch.no_grad()
def settle_batchnorm(run: Run) -> str:
    """Batch-norm statistics anew, if the user says so or if held-out outputs then are nearer to the original's."""
    wanted = run.settings.batchnorm
    before = statistics_of(run.pruned)
    if wanted is False or run.fit is None or not before:
        return ""
    if wanted is None and run.fit.count < 2:  # one sample has no variance
        return ""
    judged = run.held or run.fit
    old = _distance(run, judged)
    reestimate(run.pruned, run.fit, run.ranks, partial(passed, run, (run.pruned,)))
    new = _distance(run, judged)
    if wanted or new < old:
        return f"batch-norm statistics estimated anew: the outputs are off by {new:.4g} of their size, not {old:.4g}"
    for buffer, value in before:
        buffer.copy_(value)
    return f"batch-norm statistics kept: the outputs are off by {old:.4g} of their size, estimated anew by {new:.4g}"


def _distance(run: Run, inputs: Inputs) -> float:
    """||pruned's outputs - original's|| / ||original's||."""
    wrong, right = list[float](), list[float]()
    for then, now in passed(run, (run.original, run.pruned), inputs.share(run.ranks)):
        expected = outputs_of(then).double()
        wrong.append(float((outputs_of(now).double() - expected).square().sum()))
        right.append(float(expected.square().sum()))
    error, size = (run.ranks.exactly(part) for part in (wrong, right))
    return (error / size) ** 0.5 if size > 0 else float(error > 0)


def passed(run: Run, models: Sequence[nn.Module], batches: Iterable[Batch]) -> Iterator[tuple[Any, ...]]:
    """What one or both networks of a run return for each batch.

    Where their weights are spread, all batches go through one segment before the next: the processes have batches of
    their own, and must gather the same weights.
    """
    if not run.shards:
        yield from (tuple(call(model, batch) for model in models) for batch in batches)
        return
    lane = Lane(run.chain, batches, models[0], models[-1], run.room, len(models) > 1)  # type: ignore[arg-type]
    *before, last = run.chain.segments(run.layers)
    for segment in before:
        with run.walking([lane], segment):
            lane.advance(segment)
    # The tail is the model without its blocks: batch-norms of the head, which runs again with it, have seen all.
    norms = [part for model in models for part in norms_of(model) if before and part.num_batches_tracked]
    with restoring(norms, "track_running_stats"), run.walking([lane], last):
        for norm in norms:
            norm.track_running_stats = False
        for items in zip(*(lane.items(side) for side in range(len(models))), strict=True):
            yield tuple(run.chain.run(model, last, *item) for model, item in zip(models, items, strict=True))


def size_of_model(model: nn.Module, layers: Sequence[LayerTrace], shards: Shards = WHOLE) -> Size:
    """A model as it is now; weights that are spread are gathered one at a time."""
    kept, total = dict[int, int](), 0
    # What is stored for several modules is stored once.
    tensors = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    for number, tensor in tensors.items():
        with shards.gathered([tensor]):
            kept[number] = int(torch.count_nonzero(tensor))
            total += stored_size(tensor.detach())
    parameters = list(model.parameters())
    weights = ((layer.rows, getattr(*owner_of(model, layer.name)[:2])) for layer in layers)
    adds = sum(int(rows * _nonzeros(weight, kept)) for rows, weight in weights)
    left = sum(kept[id(parameter)] for parameter in parameters)
    return Size(
        sum(p.numel() for p in parameters), left, adds if any(layer.rows for layer in layers) else None, total
    )


def _nonzeros(weight: Tensor, known: Mapping[int, int]) -> int:
    """Of a weight; one that is computed is none of the model's tensors."""
    return known[id(weight)] if id(weight) in known else int(torch.count_nonzero(weight))


def warn_of(report: PruneReport, failed: str | None) -> None:
    """Warnings for layers whose result is not what was asked for, or a network that is far off or was not fitted.

    failed: why an effort could not fit the network as a whole.
    """
    worst = (Status.FELL_BACK, Status.POOR, Status.FEW_ROWS)
    bad = [[layer for layer in report.layers if layer.status == status] for status in worst]
    far = report.held is not None and report.held.far
    if count := sum(map(len, bad)):
        said = "; ".join([f"{mine[0].name}: {mine[0].message}" for mine in bad if mine] + [str(report.held)] * far)
        need = "needs" if count == 1 else "need"
        warn(f"{count} of {counted(len(report.layers), 'layer')} {need} a look; {said}", PruneWarning)
    elif far:
        other = ", or give more samples" if report.effort is not None else ", or take the default effort"
        warn(f"the network needs a look; {report.held}; prune less{other}", PruneWarning)
    if failed is not None and report.effort != "fast" and report.refinement is None:
        warn(f"the network needs a look: it was not fitted as a whole; {failed}", PruneWarning)
    before, after = ((size.nonzeros if size else 0) for size in (report.before, report.after))
    if after > FULLER * before:
        said = f"pruned weights came back: the model had {before:,} that are not zero, and now {after:,}"
        warn(f"{said}; ask for more zeros than it has", PruneWarning)
