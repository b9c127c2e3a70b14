"""One walk over the layers in order of execution: those with a goal are pruned, those after them compensated.

A network is walked segment by segment (calibration.chain): only the segment at hand runs, from the states that both
networks have reached. Layers with one input are a group: one pass gives the rows of all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from feta.calibration.chain import Segment
from feta.calibration.lane import Lane, Unlike
from feta.calibration.stream import Source
from feta.calibration.trace import LayerTrace
from feta.engine.checkpoint import Checkpoint
from feta.engine.layer import LayerJob, naming, written
from feta.engine.run import Run
from feta.engine.settings import Callback, PruneEvent, parse_activation
from feta.layers import first_match
from feta.problem import Activation, Pruner
from feta.pruners import make
from feta.report import LayerReport, RefinePoint
from feta.sparsity import Sparsity

UNLIKE = (
    "the two networks give it different rows: fitted to inputs and outputs of the original, as in mode='parallel'"
)


@dataclass
class Walk:
    """What holds for all layers of a walk, and what has come of it so far."""

    run: Run
    goals: Mapping[str, Sparsity]
    pruner: Pruner
    compensate: bool
    callback: Callback | None
    seed: int
    instead: Callable[[LayerJob], None] | None = None  # of pruning the layers that have a goal
    reports: list[LayerReport] = field(default_factory=list)
    compensated: dict[str, str] = field(default_factory=dict)  # layer -> how its refit ended
    checkpoint: Checkpoint | None = None
    finished: set[str] = field(default_factory=set)  # layers that an earlier run has done

    def resume(self, folder: str | Path, key: Mapping[str, str]) -> None:
        """Keep finished layers in a folder, and begin with those that are there."""
        self.checkpoint, found = Checkpoint.open(folder, key, self.run.ranks)
        self.reports, self.compensated, self.finished = found.reports, dict(found.compensated), found.names
        for layer in self.run.layers:
            if layer.name in self.finished:
                into = written(self.run.pruned, layer)
                with self.run.shards.gathered(into.values()):
                    self.checkpoint.put(found.tensors, into)

    def over(self) -> None:
        """Walk over all layers."""
        layers, run = self.run.layers, self.run
        weighted = [layer for layer in layers if layer.name in self.goals] if self.pruner.needs.importance else []
        importance = run.importance(weighted, self.seed)
        # A refit would change what else a weight is for.
        after = {later.name for layer, later in pairwise(layers) if layer.name in self.goals and not later.elsewhere}
        touched = {*self.goals, *(after if self.compensate else ())}
        if run.fit is None:
            for layer in layers:
                if layer.name in self.goals:
                    with run.shards.gathered(written(run.pruned, layer).values()):
                        self._prune(LayerJob(run, layer, None, self._activation(layer)))
            return
        lanes, left = run.lanes(), len(touched)
        # A model that is too large for the device, or spread, is worked on block by block, wanted or not.
        for segment in run.chain.segments(layers, None if run.apart else touched):
            with run.walking(lanes, segment):
                for group in _groups(segment.layers):
                    wanted = [layer for layer in group if layer.name in touched]
                    left -= len(wanted)
                    if wanted and self.finished.issuperset(layer.name for layer in wanted):
                        self._part(lanes)
                    else:
                        self._serve(lanes, segment, wanted, importance)
                        self._keep(wanted)
                if not left:
                    return
                for lane in lanes[: 1 + (run.held is not None)]:
                    lane.advance(segment)

    def _serve(
        self,
        lanes: tuple[Lane, Lane],
        segment: Segment,
        group: Sequence[LayerTrace],
        importance: Mapping[str, Tensor],
    ) -> None:
        """Prune or compensate layers with one input."""
        if not group:
            return
        cascaded = self.run.settings.mode == "cascade" and lanes[0].parted
        routed = any(layer.routed for layer in group)
        try:
            self._fit(
                lanes, segment, group, importance, cascaded and not routed, UNLIKE if cascaded and routed else ""
            )
        except Unlike:
            left = [layer for layer in group if layer.name not in {report.name for report in self.reports}]
            self._fit(lanes, segment, left, importance, False, UNLIKE)
        self._part(lanes)

    def _part(self, lanes: Sequence[Lane]) -> None:
        """From here on the pruned network goes its own way."""
        for lane in lanes:
            lane.parted = self.run.settings.mode == "cascade"

    def _keep(self, layers: Sequence[LayerTrace]) -> None:
        """Finished layers are put where a later run finds them."""
        if self.checkpoint is not None and layers:
            parts = [written(self.run.pruned, layer) for layer in layers]
            tensors = {name: tensor for part in parts for name, tensor in part.items()}
            self.checkpoint.add(tensors, self.reports, self.compensated)

    def _fit(
        self,
        lanes: tuple[Lane, Lane],
        segment: Segment,
        group: Sequence[LayerTrace],
        importance: Mapping[str, Tensor],
        cascaded: bool,
        said: str,
    ) -> None:
        with naming(group[0].name):
            fit = self._source(lanes[0], segment, group, cascaded, self.pruner.needs.passes)
            held = self._source(lanes[1], segment, group, cascaded, "few") if self.run.held is not None else fit
        for layer in group:
            sources: tuple[Source, Source] | None = fit, held
            if layer.routed:
                judge = fit if held.empty(layer.name) else held
                sources = None if fit.empty(layer.name) else (fit, judge)
            job = LayerJob(
                self.run, layer, sources, self._activation(layer), importance.get(layer.name), said if sources else ""
            )
            if layer.name in self.goals:
                (self.instead or self._prune)(job)
            elif sources is not None:
                self.compensated[layer.name] = job.compensate().value

    def _source(
        self, lane: Lane, segment: Segment, group: Sequence[LayerTrace], cascaded: bool, passes: str
    ) -> Source:
        """The rows of a group: kept where they fit, or where a method reads them many times."""
        source, cache = Source(lane, segment, group, cascaded), self.run.settings.cache
        entries, own = sum(layer.entries for layer in group), lane.inputs.count / lane.inputs.ranks.count
        room, size = lane.room, entries * own * 4
        # A grouped convolution is many problems: each would run the segment again.
        fits = cache == "auto" and (size <= room.bytes or any(layer.operator.groups > 1 for layer in group))
        if passes != "none" and (fits or cache in ("memory", "disk") or (passes == "many" and cache == "auto")):
            source.kept = self._together(room.hold, lane.seen(segment, group, cascaded))
        return source

    def _together(self, hold: Callable[[Any], Any], seen: Iterator[Any]) -> Any:
        """Calls that are kept; rows that are unlike in one process are so in all."""
        held, unlike = None, None
        try:
            held = hold(seen)
        except Unlike as error:
            unlike = error
        if self.run.ranks.any(unlike is not None):
            raise unlike or Unlike("rows must be alike in both networks, got others in another process")
        return held

    def _activation(self, layer: LayerTrace) -> Activation | None:
        """What the user says, which goes before what tracing found."""
        given = self.run.settings.activation if layer.operator.biased else None
        by_pattern = {"*": given} if isinstance(given, str) else given or {}
        pattern = first_match(layer.name, by_pattern)
        return None if pattern is None else parse_activation(by_pattern[pattern])

    def _prune(self, job: LayerJob) -> None:
        tell = partial(self._tell, job.trace.name, len(self.reports))
        tell("start")
        reached = job.sources is not None or self.run.fit is None
        self.reports.append(
            job.prune(self.pruner if reached else make("threshold"), self.goals[job.trace.name], tell)
        )
        tell("done")

    def _tell(
        self, layer: str, index: int, kind: Literal["start", "step", "done"], phase: str = "", values: Any = None
    ) -> None:
        if self.callback is not None:
            self.callback(PruneEvent(kind, layer, index, len(self.goals), phase, values or {}))

    def tell_loss(self, point: RefinePoint) -> None:
        """An event of the refinement that follows the walk: its loss so far."""
        self._tell("all layers", len(self.goals), "step", "refine", {"steps": point.steps, "loss": point.loss})


def _groups(layers: Sequence[LayerTrace]) -> Iterator[list[LayerTrace]]:
    """Layers that read one and the same tensor; one that runs several times is a group of its own.

    So is one with a shortcut: that may come from another layer with this input, which then is pruned first.
    """

    def alone(layer: LayerTrace) -> bool:
        return layer.calls > 1 or layer.follow.shortcut

    for _, group in groupby(layers, key=lambda layer: (layer.source, layer.name if alone(layer) else "")):
        yield list(group)
