"""The recipes behind `effort`: which stages follow the layers, and which of their networks is kept.

    fast      layer by layer alone
    default   then the whole network: its survivors fitted, and a support that moves from the dense network on
    best      then longer and longer fits, until held-out rows say that more is useless

Of deep networks the survivors alone are fitted, for all of the time: a support that moves from the dense network on
did not catch up with them (a ResNet-20 at 90 %, 12,000 steps).

All stages are judged on the same rows, which none of them fitted; a stage that did not help is not kept.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from textwrap import shorten
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from feta.engine.compare import compared, likeness
from feta.engine.judge import too_few
from feta.engine.layer import EMPTY
from feta.engine.run import Run
from feta.errors import ConfigError, FetaError
from feta.layers import weight_of
from feta.problem import Status
from feta.ranks import RankError
from feta.report import Held, LayerReport, RefinePoint, RefineReport, StageReport
from feta.tuning.bench import distance_of
from feta.tuning.refine import RefineResult, fitted
from feta.tuning.refinement import Refinement

Effort = Literal["fast", "default", "best"]
EFFORTS: tuple[str, ...] = get_args(Effort)

MANY_LAYERS = 64  # whose sensitivities take longer to measure than pruning does
DEEP = 12  # pruned layers
STEPS = 6000  # halved until they fit into the time; twice as many of deep networks
TIMES, FLOOR = 9, 60  # times the seconds of the layers, or so many at the least, that the fits of `default` may take
LONGER, USEFUL = 2, 0.98  # times as many steps, as long as the distance falls below this share of the one before
NOTHING, MANY = 2e-3, 100  # relative error of so many held-out outputs, below which no fit gains anything
STRAYED, SURER = 0.4, 0.02  # error above which values are left behind, unless so much more of the answers are right
ROUNDS, WIDER = 3, 4  # of longer fits, and how many times as many rows their steps see


@dataclass
class Recipe:
    """The stages of a run so far, and the best network among them."""

    run: Run
    masks: dict[str, Tensor]  # of the best
    seed: int
    left: Callable[[], float | None]  # seconds; None: as long as it takes
    callback: Callable[[RefinePoint], None] | None = None
    pattern: str | None = None
    free: bool = False  # whether a support that moves may spread the budget over layers anew
    stages: list[StageReport] = field(default_factory=list)
    refinement: RefineReport | None = None  # of the best

    def __post_init__(self) -> None:
        self.best, self.layered = self.run.result, self.masks
        self.rate: float | None = None  # that was found to be right
        self.steps = STEPS  # of the last fit
        self.stopped: Exception | None = None  # by the callback
        self.failed: str | None = None  # why the whole network could not be fitted, or judged

    def layers_done(self, seconds: float) -> None:
        """The first stage: what pruning layer by layer has made."""
        run, far, measure, said = self.run, None, "", ""
        if run.held is None or run.held.count < 2:
            said = "too few samples to fit and judge a network by; give 200 or more"
        elif run.several:
            said = (
                "the model returns several outputs, of which one alone would be fitted; where one is all that "
                "counts, name it `logits` or, beside other heads, wrap the model so that it returns that one alone"
            )
        elif run.shards:
            said = "the model is walked block by block, its weights spread over processes, and not fitted as a whole"
        elif run.home != run.device:
            said = "the model is too large for the device to be fitted as a whole"
        else:
            try:
                given = (run.pruned, run.original, run.held, run.device, run.settings.loss, run.ranks)
                far, measure = distance_of(*given)
            except (torch.OutOfMemoryError, RankError):
                raise
            except Exception as error:  # of a model that takes no mixtures, say
                said = self.failed = _said(error)
        if far is not None and not math.isfinite(far):
            far, said = None, f"outputs must be finite to be judged by, got a distance of {far}"
            self.failed = said
        self.stages.append(StageReport("layer by layer", seconds, far, True, said, measure))

    @cached_property
    def layers_held(self) -> Held | None:
        """Where the layers' result stands beside the original."""
        return compared(self.run, self.run.result)

    def improve(self, effort: str) -> None:
        """Fit the whole network, as far as the effort goes."""
        layers = self.stages[0]
        if layers.distance is None:
            return
        near = self.layers_held if self.run.judged().by >= MANY else None
        if near is not None and near.error is not None and near.error < NOTHING:
            said = f"left out, for the outputs are within {100 * NOTHING:g} % of the original's"
            self.stages.append(StageReport("fits of the whole network", 0.0, None, False, said))
            return
        allowed = max(FLOOR, TIMES * layers.seconds)
        moving: Literal["moving", "free"] = "free" if self.free and self.pattern is None else "moving"
        if len(self.masks) >= DEEP:
            self._try("survivors fitted", Refinement(2 * STEPS), allowed)
        else:
            self._try("survivors fitted", Refinement(STEPS // 4), allowed / 4, share=0.25)
            self._try("moving support", Refinement(STEPS, moving), 3 * allowed / 4)
        if effort == "best":
            self._go_on()

    def _go_on(self) -> None:
        """Longer and longer: the support that was best so far once more, if it moved, and then its survivors.

        It moves in each layer alone by now: over long fits a free one drifts from layer to layer and gains nothing.
        """
        steps, moving = self.steps, self.refinement is not None and self.refinement.support != "fixed"
        for _ in range(ROUNDS):
            steps, before = LONGER * steps, self._distance()
            if moving:
                self._try("moving support, longer", Refinement(steps, "moving", learning_rate=self.rate), again=True)
            self._try("survivors fitted, longer", Refinement(steps), again=True)
            if self._distance() > USEFUL * before:
                break

    def _distance(self) -> float:
        """Of the best network."""
        return min(stage.distance for stage in self.stages if stage.distance is not None)

    def refine(self, settings: Refinement) -> None:
        """A fit that was asked for by name: its result is taken."""
        run = self.run
        if run.fit is None or run.held is None:
            raise ConfigError("data must hold 4 or more samples to refine on, one to judge by")
        self._take(self._fit(settings, thaw=False))

    def settled(self, layer: LayerReport) -> LayerReport:
        """A layer's report, after a fit of the whole network that was kept."""
        if self.refinement is None:
            return layer
        mask = self.masks[layer.name]
        count = int(mask.sum())
        # Its own error was left behind on purpose: the network's distance is what counts now.
        known: dict[str, Any] = {"relative_error": None, "pruned_error": layer.relative_error}
        known |= {"nonzeros": count, "sparsity": 1 - count / mask.numel()}
        if layer.status != Status.FEW_ROWS:  # which holds for the fit as well
            few = too_few(self.run.judged())
            before = f"before the network was fitted as a whole: {layer.message}" if layer.message else ""
            known |= {"status": (Status.FEW_ROWS if few else Status.OK).value, "message": few or before}
            if count == 0 and not few and bool(weight_of(self.run.original, layer.name).any()):
                known |= {"status": Status.POOR.value, "message": EMPTY}
        return replace(layer, **known)

    def _fit(
        self, settings: Refinement, within: float = math.inf, thaw: bool = True, again: bool = False
    ) -> RefineResult:
        run = self.run
        assert run.fit is not None
        assert run.held is not None
        rows, settings = (run.fit, run.held), replace(settings, pattern=self.pattern)
        start, masks = (self.best, self.masks) if again else (run.result, self.layered)
        given = (start, run.original, rows, settings, masks, run.device, self.seed, self._tell)
        return fitted(*given, within, thaw, run.ranks, WIDER if again else 1)

    def _tell(self, point: RefinePoint) -> None:
        try:
            if self.callback is not None:
                self.callback(point)
        except Exception as error:  # the user's own, which ends the run
            self.stopped = error
            raise

    def _try(
        self, name: str, settings: Refinement, within: float = math.inf, share: float = 1.0, again: bool = False
    ) -> None:
        """A stage from the layers' result on, or `again` from the best network; kept if it is the best.

        again: a support that moves starts from the original, and keeps as many in each layer as the best network.

        share: of the seconds that are left.
        """
        left = self.left()
        if left is not None and left <= 0:
            self.stages.append(StageReport(name, 0.0, None, False, "no time was left"))
            return
        started = self.run.clock()
        try:
            given = replace(settings, seconds=None if left is None else share * left, loss=self.run.settings.loss)
            done = self._fit(given, within, again=again)
        except (torch.OutOfMemoryError, RankError):
            raise
        except Exception as error:  # a model without a backward pass, or a fit that ran away
            if error is self.stopped:
                raise
            self.failed = _said(error)
            self.stages.append(StageReport(name, self.run.clock() - started, None, False, self.failed))
            return
        report = done.report
        self.rate, self.steps = report.learning_rate, report.steps
        strayed = self._strayed(done.model)
        kept = report.loss_after < self._distance() and not strayed
        if kept:
            self.stages = [replace(stage, kept=False) for stage in self.stages]
            self._take(done)
        said = steps_said(report, settings.steps, within if left is None else None) + strayed
        self.stages.append(StageReport(name, report.seconds, report.loss_after, kept, said, report.measure))

    def _strayed(self, model: torch.nn.Module) -> str:
        """What is to be said where values were taken for scores, and a fit to the scores has spoilt them."""
        run = self.run
        if run.shards or run.held is None or not likeness(run)[0].guessed:
            return ""
        before, after = self.layers_held, compared(run, model)
        if before is None or after is None or before.error is None or before.agreement is None:
            return ""
        if after.error is not None and after.error <= max(STRAYED, 1.25 * before.error):
            return ""
        if after.agreement is not None and after.agreement > before.agreement + SURER:
            return ""
        return (
            "; left out, for it took the outputs for scores of classes and spoilt them: fit their values by "
            "settings=feta.Settings(loss='mse')"
        )

    def _take(self, done: RefineResult) -> None:
        self.best, self.masks, self.refinement = done.model, done.masks, done.report


def steps_said(report: RefineReport, asked: int, within: float | None) -> str:
    """How many steps a fit took, and why they were fewer than asked for.

    within: seconds that it was to take; None where the user has set them.
    """
    why = "for want of time" if within is None else f"in some {within:.0f} s"
    cut = f" of {asked} ({why})" if report.steps < asked else ""
    return f"{report.steps} steps{cut}, rate {report.learning_rate:g}"


def _said(error: Exception) -> str:
    """The first line of an error; of one that is not ours, with its kind."""
    first = shorten(next(iter(str(error).splitlines()), ""), 120, placeholder=" …")
    if "does not require grad" in first:
        return "its outputs have no gradient, as those of a forward under torch.no_grad(), or of an argmax"
    return first if isinstance(error, FetaError) else f"{type(error).__name__}: {first}"
