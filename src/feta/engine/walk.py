"""One walk over the layers in order of execution: those with a goal are pruned, those after them compensated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor

from feta.calibration.capture import LayerTrace
from feta.engine.layer import LayerJob
from feta.engine.run import Run
from feta.engine.settings import Callback, PruneEvent, Settings, parse_activation
from feta.layers import first_match
from feta.problem import Activation, Pruner
from feta.report import LayerReport, RefinePoint
from feta.sparsity import Sparsity


@dataclass(frozen=True)
class Walk:
    """What holds for all layers of a walk."""

    run: Run
    goals: Mapping[str, Sparsity]
    pruner: Pruner
    settings: Settings
    callback: Callback | None
    seed: int

    def over(self, traces: Sequence[LayerTrace], compensate: bool) -> tuple[list[LayerReport], dict[str, str], float]:
        """A report per pruned layer, how each compensated layer ended, and the seconds of all of it."""
        reports: list[LayerReport] = []
        compensated: dict[str, str] = {}
        weighted = list(self.goals) if self.pruner.needs.importance else []
        importance, seconds = self.run.importance(weighted, self.seed)
        follows_pruned = False
        for trace in traces:
            if trace.name in self.goals:
                reports.append(self._prune(trace, len(reports), importance.get(trace.name)))
                seconds += reports[-1].seconds
            elif compensate and follows_pruned:
                status, took = LayerJob(self.run, trace, Activation.LINEAR, cascaded=True).compensate()
                compensated[trace.name] = status.value
                seconds += took
            follows_pruned = trace.name in self.goals
        return reports, compensated, seconds

    def _prune(self, trace: LayerTrace, index: int, importance: Tensor | None) -> LayerReport:
        tell = partial(self._tell, trace.name, index)
        cascaded = self.settings.mode == "cascade" and index > 0
        given = self.settings.activation
        by_pattern = {"*": given} if isinstance(given, str) else given or {}
        pattern = first_match(trace.name, by_pattern)  # what the user says goes before what tracing found
        activation = trace.activation if pattern is None else parse_activation(by_pattern[pattern])
        job = LayerJob(self.run, trace, activation, cascaded, importance)
        tell("start")
        report = job.prune(self.pruner, self.goals[trace.name], self.settings.cache, tell)
        tell("done")
        return report

    def _tell(
        self, layer: str, index: int, kind: Literal["start", "step", "done"], phase: str = "", values: Any = None
    ) -> None:
        if self.callback is not None:
            self.callback(PruneEvent(kind, layer, index, len(self.goals), phase, values or {}))

    def tell_loss(self, point: RefinePoint) -> None:
        """An event of the refinement that follows the walk: its loss so far."""
        self._tell("all layers", len(self.goals), "step", "refine", {"passes": point.passes, "loss": point.loss})
