"""One layer's turn: its rows, its problems (one per group), its solution, and what that costs in accuracy."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.fold import Folded
from feta.calibration.stream import LayerStream, Source, Through, sampled
from feta.calibration.trace import LayerTrace
from feta.engine.judge import Choice, errors_of, few_rows, silenced, thresholded, verdict
from feta.engine.run import Run
from feta.engine.solve import emptied, solve
from feta.errors import FetaError, ModelError
from feta.layers import LayerView
from feta.patterns import Blocks
from feta.problem import Activation, ActivationStream, LayerProblem, LayerSolution, Pruner, Status
from feta.ranks import RankError
from feta.report import LayerReport
from feta.solvers.refit import refit_dense
from feta.sparsity import Sparsity, measured, top_k_mask

EMPTY = "no weight of it is left, so that it says the same of every input; prune it less, or leave it out"
UNREACHED = "no sample reaches this layer, which was thresholded; more samples would help"
LOOKED_AT = 4096  # fitted rows that are judged beside the held-out ones


@dataclass(frozen=True)
class LayerJob:
    """What is known of a layer before it is pruned."""

    run: Run
    trace: LayerTrace
    sources: tuple[Source, Source] | None  # rows to fit and to judge by; None without data, or if there are none
    activation: Activation | None = None  # what the user says comes behind the layer
    importance: Tensor | None = None  # of the layer's outputs, all groups
    said: str = ""  # of its rows, for the report

    @property
    def view(self) -> LayerView:
        return LayerView.of(self.run.pruned, self.trace.name, self.trace.operator)

    def frames(self, through: bool) -> list[Folded]:
        """The groups of the layer, with what follows it or alone."""
        view, trace = self.view, self.trace
        if through:
            activation = self.activation or trace.follow.activation
            return [Folded.of(view, group, trace, self.run.pruned, activation) for group in range(view.groups)]
        return [Folded(view, group, Through(self.activation or trace.activation)) for group in range(view.groups)]

    def problem(self, frame: Folded, tell: Any = None, shares: bool = True) -> LayerProblem:
        """shares: whether whoever reads the rows can do with those of this process alone."""
        stream: ActivationStream | None = None
        if self.sources is not None:
            own = LayerStream(self.sources[0], frame.view, frame.through, frame.group)
            stream = own
            if own.ranks.many and not shares:  # what it learns of the inputs holds for this process's rows as well
                stream = replace(own.sampled(sys.maxsize), shared=own.shared)
        weights = None if self.importance is None else frame.view.part(self.importance, frame.group)
        cascaded = self.sources is not None and self.sources[0].cascaded
        return LayerProblem(
            frame.W,
            frame.bias,
            stream,
            frame.through.activation,
            cascaded,
            self.trace.name,
            tell,
            weights,
            not cascaded,
        )

    def prune(self, pruner: Pruner, target: Sparsity, tell: Callable[..., None]) -> LayerReport:
        """Solve every group of the layer, judge what came of it, and write the layer back."""
        started, shares = self.run.clock(), pruner.needs.shares
        frames, goals, solutions = self.frames(pruner.needs.through), group_goals(self.view, target), []
        with naming(self.trace.name):
            for frame, goal in zip(frames, goals, strict=True):
                problem = self.problem(frame, lambda phase, values: tell("step", phase, values), shares)
                promised = _promised(problem.W, goal)
                solution = solve(pruner, problem, goal)
                check(solution, problem, pruner, goal, promised)
                solutions.append(emptied(solution, problem, goal))
            found = Choice(frames, [(solution.U, solution.bias) for solution in solutions])
            worst = next((s for s in solutions if s.status is not Status.OK), solutions[0])
            if isinstance(target.pattern, Blocks) and target.pattern.whole:
                found = silenced(found, self.frames(through=True))
            chosen, error, worst = self._judged(found, worst, goals, pruner)
            alive = any(bool(frame.W.any()) for frame in frames)
            chosen.write()
        self._same()
        weight = self.view.weight.detach()
        if alive and not weight.any() and worst.status is Status.OK:
            worst = replace(worst, status=Status.POOR, message=EMPTY)
        return LayerReport(
            name=self.trace.name,
            shape=tuple(weight.shape),
            nonzeros=int(torch.count_nonzero(weight)),
            sparsity=measured(weight),
            relative_error=error,
            seconds=self.run.clock() - started,
            activation=frames[0].through.activation.value,
            status=worst.status.value,
            message="; ".join(
                filter(None, (worst.message, self.said, self.trace.second_use, _spared(weight, target)))
            ),
            stats=dict(worst.stats),
            positions=self.trace.rows,
            pattern=None if target.pattern is None else str(target.pattern),
        )

    def compensate(self) -> Status:
        """Refit this unpruned layer to its original outputs: how that ended."""
        worst = Status.OK
        for frame in self.frames(through=False):
            with naming(self.trace.name):
                solution = refit_dense(self.problem(replace(frame, through=Through(Activation.LINEAR))))
            frame.write(solution.U, solution.bias)
            worst = worst if solution.status is Status.OK else solution.status
        self._same()
        return worst

    def _same(self) -> None:
        """The layer, and the batch-norm behind it, equal in all processes."""
        self.run.ranks.same_(written(self.run.pruned, self.trace).values())

    def _judged(
        self, found: Choice, worst: LayerSolution, goals: Sequence[Sparsity], pruner: Pruner
    ) -> tuple[Choice, float | None, LayerSolution]:
        """The weights to take, their error on held-out rows, and what is said of them."""
        if self.sources is None:
            reached = self.run.fit is None or worst.status is not Status.OK
            return found, None, worst if reached else replace(worst, status=Status.FEW_ROWS, message=UNREACHED)
        judges = self.frames(through=True)
        fit, held = self.sources
        means = [_mean(fit, frame, asked=pruner.needs.safe) for frame in judges]
        choices = [found, *thresholded(judges, goals, means)]
        streams = [LayerStream(held, frame.view, frame.through, frame.group) for frame in judges]
        errors = errors_of(choices, judges, streams, self.importance)
        best = min(range(1, len(errors)), key=lambda index: errors[index].weighted)
        told = verdict(errors[0], errors[best], pruner.needs.safe) if pruner.needs.passes != "none" else None
        if told is not None:
            worst = replace(worst, status=told[0], message="; ".join(filter(None, (worst.message, told[1]))))
        elif pruner.needs.passes != "none" and worst.status is Status.OK:
            if few := few_rows(fit, judges[0], self._overfit(found, judges, errors[0].plain), self.run.judged()):
                worst = replace(worst, status=Status.FEW_ROWS, message=few)
        elif errors[0].plain > 1:
            said = f"the error on held-out samples is {errors[0].plain:.3g}; prune this layer less"
            worst = replace(worst, status=Status.POOR, message=said)
        whole = all(goal.count(frame.W.numel()) == frame.W.numel() for goal, frame in zip(goals, judges, strict=True))
        if whole and worst.status in (Status.FELL_BACK, Status.FEW_ROWS):
            worst = replace(worst, status=Status.OK, message="all its weights stay, and stay as they are")
            return choices[best], errors[best].plain, worst
        if worst.status is Status.FELL_BACK:
            return choices[best], errors[best].plain, worst
        return found, errors[0].plain, worst

    def _overfit(self, found: Choice, judges: Sequence[Folded], error: float) -> float | None:
        """How many times larger the error is than on fitted rows, where these are at hand and few."""
        assert self.sources is not None
        fit, held = self.sources
        if fit.kept is None or fit is held or self.run.held is None or fit.lane.inputs.count >= 1000:
            return None
        streams = sampled([LayerStream(fit, frame.view, frame.through, frame.group) for frame in judges], LOOKED_AT)
        ((fitted, _),) = errors_of([found], judges, streams)
        return error / fitted if fitted > 1e-6 else (float("inf") if error > 1e-3 else None)


def written(model: nn.Module, trace: LayerTrace) -> dict[str, Tensor]:
    """What pruning a layer writes to: its weight, its bias, and the shift of the batch-norm behind it."""
    view = LayerView.of(model, trace.name, trace.operator)
    shift = None if trace.follow.norm is None else model.get_submodule(trace.follow.norm).bias
    parts = {"weight": view.weight, "bias": view.bias_parameter, "shift": shift}
    return {f"{trace.name}/{part}": tensor for part, tensor in parts.items() if isinstance(tensor, Tensor)}


def _mean(source: Source, frame: Folded, asked: bool) -> Tensor | None:
    """The mean of a layer's inputs, where it is known or asked for."""
    stream = LayerStream(source, frame.view, frame.through, frame.group)
    known = stream.shared.get("gram")
    if known is not None:
        return known.H[-1, :-1] / known.rows  # type: ignore[no-any-return]
    if not asked:
        return None
    own = [A.sum(0, dtype=torch.float64) for A in stream.inputs()]
    total = stream.ranks.total(torch.stack(own).sum(0) if own else None)
    return None if total is None else total / stream.n_rows


def check(solution: LayerSolution, problem: LayerProblem, pruner: Pruner, goal: Sparsity, promised: int) -> None:
    """Hold a method to its contract. Raises ModelError that names the method and what it broke."""
    if not isinstance(solution, LayerSolution):
        raise ModelError(f"method '{pruner.name}' must give a LayerSolution, got {type(solution).__name__}")
    for label, got, like in (("U", solution.U, problem.W), ("bias", solution.bias, problem.bias)):
        if _form(got) != _form(like):
            raise ModelError(f"method '{pruner.name}' must give {label} {_form(like)}, got {_form(got)}")
        bad = 0 if got is None else int((~torch.isfinite(got)).sum())
        if bad:
            raise ModelError(f"method '{pruner.name}' must give finite {label}, got {bad} NaN or infinite entries")
    kept, count = int(torch.count_nonzero(solution.U)), goal.count(problem.W.numel())
    if goal.pattern is not None:
        support = solution.U != 0
        if bool((support & ~goal.mask(support.float())).any()):
            raise ModelError(f"method '{pruner.name}' must keep to the pattern '{goal.pattern}', got other weights")
    if kept > count and pruner.needs.count != "own":
        raise ModelError(f"method '{pruner.name}' must keep at most {count} weights, got {kept}")
    if promised > 0 and kept == 0 and pruner.needs.count == "exact":
        raise ModelError(f"method '{pruner.name}' must not give zeros alone where {count} weights may stay")
    if pruner.needs.count == "exact" and kept < promised:
        raise ModelError(f"method '{pruner.name}' must keep exactly {promised} weights, got {kept}")


def _spared(weight: Tensor, target: Sparsity) -> str:
    full = target.pattern is not None and target.count(weight.numel()) == weight.numel()
    return f"too few inputs for the pattern '{target.pattern}': all weights stay" if full else ""


def _promised(W: Tensor, goal: Sparsity) -> int:
    """Non-zeros that a method owes: a weight that was zero may stay zero, and in a pattern take another's place."""
    alive = int(W.count_nonzero())
    if goal.pattern is not None and alive < W.numel():
        return min(alive, goal.count(W.numel()), 1)
    return min(alive, goal.count(W.numel()))


def _form(value: Any) -> str:
    is_tensor = isinstance(value, Tensor)
    return f"{tuple(value.shape)} {value.dtype} on {value.device}" if is_tensor else type(value).__name__


@contextmanager
def naming(layer: str) -> Iterator[None]:
    """Errors from inside carry the layer's name, once."""
    try:
        yield
    except RankError:  # of another layer, perhaps
        raise
    except FetaError as error:
        if str(error).startswith((f"{layer}: ", f"layer '{layer}' ", f"layer '{layer}':")):
            raise
        raise type(error)(f"layer '{layer}': {error}") from error


def group_goals(view: LayerView, target: Sparsity) -> list[Sparsity]:
    """A goal for each group of a layer: as many weights, or blocks, as the group has of the layer's largest."""
    keep, pattern = target.count(view.weight.numel()), target.pattern
    if view.groups == 1:
        return [Sparsity(nonzeros=keep, pattern=pattern)]
    if pattern is None:
        parts = top_k_mask(view.weight.detach().abs(), keep).chunk(view.groups)
    else:  # side by side they are one matrix, whose blocks lie in one group each
        parts = pattern.mask(view.flat(view.weight.detach()).abs().float(), keep).chunk(view.groups, 1)
    return [Sparsity(nonzeros=int(part.sum()), pattern=pattern) for part in parts]
