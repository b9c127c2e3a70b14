"""One walk over the layers in order of execution: each that has a goal is pruned, those after them compensated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import Tensor

from feta.calibration.capture import LayerTrace
from feta.engine.run import Cache, Callback, LayerJob, Mode, PruneEvent, Run
from feta.errors import unknown_name
from feta.problem import Activation, Pruner
from feta.report import LayerReport
from feta.sparsity import Sparsity


@dataclass(frozen=True)
class Walk:
    """What holds for all layers of a walk."""

    run: Run
    goals: Mapping[str, Sparsity]
    pruner: Pruner
    mode: Mode
    cache: Cache
    activation: str | Mapping[str, str] | None
    callback: Callback | None
    seed: int

    def over(
        self, traces: Sequence[LayerTrace], compensate: bool
    ) -> tuple[list[LayerReport], dict[str, str], float]:
        reports: list[LayerReport] = []
        compensated: dict[str, str] = {}
        weighs = self.pruner.needs.importance
        importance, seconds = self.run.importance(list(self.goals), self.seed) if weighs else ({}, 0.0)
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
        def tell(kind: Literal["start", "step", "done"], phase: str = "", values: Any = None) -> None:
            if self.callback is not None:
                self.callback(PruneEvent(kind, trace.name, index, len(self.goals), phase, values or {}))

        cascaded = self.mode == "cascade" and index > 0
        job = LayerJob(self.run, trace, _activation_of(trace, self.activation), cascaded, importance)
        tell("start")
        report = job.prune(self.pruner, self.goals[trace.name], self.cache, tell)
        tell("done")
        return report


def _activation_of(trace: LayerTrace, given: str | Mapping[str, str] | None) -> Activation:
    if given is None:
        return trace.activation
    if isinstance(given, str):
        return parse_activation(given)
    found = next((value for pattern, value in given.items() if fnmatchcase(trace.name, pattern)), None)
    return trace.activation if found is None else parse_activation(found)


def parse_activation(name: str) -> Activation:
    if name not in list(Activation):
        raise unknown_name("activation", name, list(Activation))
    return Activation(name)
