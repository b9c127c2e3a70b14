"""A network without some of its units: every layer refitted, batch-norms settled, cut, checked and judged."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.inputs import Batch
from feta.calibration.model import call, outputs_of
from feta.engine.finish import settle_batchnorm
from feta.engine.recipe import steps_said
from feta.engine.run import Run
from feta.engine.walk import Walk
from feta.errors import ModelError
from feta.pruners import make
from feta.report import RefineReport, StageReport
from feta.sparsity import Sparsity
from feta.structured.groups import Group, cut, same
from feta.structured.refit import Refit
from feta.tuning.bench import copy_weights_, distance_of
from feta.tuning.refine import fitted
from feta.tuning.refinement import Refinement


@dataclass(frozen=True)
class Built:
    """A smaller network, and how it came about."""

    model: nn.Module
    gone: Mapping[str, Tensor]  # root of a group -> its units that are gone
    errors: dict[str, float]  # refitted layer -> relative error on held-out rows
    batchnorm: str  # what was done about batch-norms
    stages: tuple[StageReport, ...]  # the last one is its own
    refinement: RefineReport | None = None

    @property
    def distance(self) -> float:
        """From the original's outputs; infinite where that cannot be measured."""
        far = self.stages[-1].distance
        return math.inf if far is None else far


def build(
    run: Run,
    batch: Batch,
    groups: Sequence[Group],
    gone: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    seed: int,
) -> Built:
    """The network without the units that are gone, which the run's own copy is refitted for."""
    started = run.clock()
    copy_weights_(run.result, run.original)
    inputs, outputs = lost_channels(groups, gone)
    refit = Refit(inputs, outputs, weights)
    goals = {name: Sparsity(share=0.0) for name in _behind(run, inputs)}
    # Of the method only its needs count: a few passes, and no weights for outputs, which are known.
    Walk(run, goals, make("sparsegpt"), False, None, seed, refit).over()
    said = settle_batchnorm(run)
    small = cut(run.result, batch, groups, gone)
    _check(run, small, batch)
    return Built(small, gone, refit.errors, said, (_judged(run, small, started),))


def lost_channels(groups: Sequence[Group], gone: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The inputs and the outputs that each layer loses."""
    found: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
    for group in groups:
        for side, index in zip(found, (group.inputs, group.outputs), strict=True):
            for name, channels in index.items():
                lost = channels[gone[group.root]].flatten()
                side[name] = torch.cat([side[name], lost]) if name in side else lost
    return found


def _behind(run: Run, inputs: Mapping[str, Tensor]) -> list[str]:
    """The layers from the first on that loses an input: what they read is not what it was."""
    names = [trace.name for trace in run.layers]
    first = next((index for index, name in enumerate(names) if len(inputs.get(name, ()))), len(names))
    # A refit would change what else a weight is for; one that loses inputs has no choice.
    return [t.name for t in run.layers[first:] if not t.elsewhere or len(inputs.get(t.name, ()))]


@torch.no_grad()
def _check(run: Run, small: nn.Module, batch: Batch) -> None:
    """The smaller network must do what the refitted one does. Raises ModelError."""
    # In float32: half precision rounds sums of fewer terms in another way.
    found, expected = (outputs_of(call(copy.deepcopy(n).float().eval(), batch)) for n in (small, run.pruned))
    if not same(found, expected):
        far = float((found.double() - expected.double()).norm() / expected.double().norm())
        raise ModelError(f"model must be the same without what nothing reads, got outputs that differ by {far:.2g}")


def _judged(run: Run, small: nn.Module, started: float) -> StageReport:
    if run.held is None or run.held.count < 2 or run.several:
        why = "the model returns several outputs" if run.several else "too few samples to judge by; give 200 or more"
        return StageReport("layer by layer", run.clock() - started, None, True, why)
    far, measure = distance_of(small, run.original, run.held, run.device, run.settings.loss)
    return StageReport("layer by layer", run.clock() - started, far, True, measure=measure)


def improve(run: Run, built: Built, how: Refinement, seed: int, within: float, tell: Any = None) -> Built:
    """The network fitted as a whole to the original's outputs, if held-out rows say that this helped.

    within: seconds that this may take; there are fewer steps where they would take longer.
    tell: called with a RefinePoint as it goes.
    """
    if not math.isfinite(built.distance):
        return built
    assert run.fit is not None
    assert run.held is not None
    done = fitted(built.model, run.original, (run.fit, run.held), how, {}, run.device, seed, tell, within)
    report = done.report
    helped = report.loss_after < built.distance
    said = steps_said(report, how.steps, within if how.seconds is None else None)
    after = StageReport("whole network fitted", report.seconds, report.loss_after, helped, said)
    if not helped:
        return replace(built, stages=(*built.stages, after))
    before = (replace(stage, kept=False) for stage in built.stages)
    return replace(built, model=done.model, stages=(*before, after), refinement=report)
