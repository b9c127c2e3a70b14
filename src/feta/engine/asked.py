"""What a call of prune asks for: checked, its defaults filled in, and its budget spread over the layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from feta.allocation import Allocation, make_allocation
from feta.allocation.measure import Probe
from feta.engine.recipe import MANY_LAYERS, Effort
from feta.engine.run import Run
from feta.engine.select import SparsityRequest, check_pattern, in_pattern, share_asked, targets
from feta.engine.settings import Callback, Measuring, Settings, parse_memory
from feta.errors import ConfigError, DataError, check_range
from feta.layers import weight_of
from feta.patterns import parse_pattern
from feta.problem import Pruner
from feta.pruners import DEFAULT_METHOD, make
from feta.report import AllocationReport
from feta.sparsity import Pattern, Sparsity
from feta.tuning.refinement import Refinement

BY_SHAPE = ("uniform", "erk")  # allocations that look at no weights
BLOCKS = "a model that is spread over processes and walked block by block"
ROOM = "it is gathered as a whole where each process has memory for it twice, see feta.Settings(memory=…)"
LEAST_MEMORY = 2**25  # bytes for a solver's matrices, however little a run may take

Goals = dict[str, Sparsity]


@dataclass(frozen=True)
class Asked:
    """One call of prune, as `asked_of` has checked it."""

    pruner: Pruner
    sparsity: SparsityRequest
    form: Pattern | None
    allocation: Allocation | None  # None: by sensitivity where that can be measured
    compensate: bool
    refine: bool | Refinement
    effort: Effort | None
    seconds: float | None
    layers: Sequence[str] | str | None
    seed: int
    settings: Settings
    data: bool  # whether there is any

    def check_blocks(self) -> None:
        """Raise ConfigError for what takes the whole network at once, where no process has it."""
        if self.refine:
            raise ConfigError(f"refine must be left out for {BLOCKS}, got {self.refine}; {ROOM}")
        if self.allocation is not None and self.allocation.name not in BY_SHAPE:
            name = self.allocation.name
            raise ConfigError(f"allocation must be one of {list(BY_SHAPE)} for {BLOCKS}, got '{name}'; {ROOM}")

    def goals(
        self, run: Run, chosen: Sequence[str], callback: Callback | None = None
    ) -> tuple[Goals, AllocationReport]:
        """A target for each layer to prune, and how it was found."""
        tell = Measuring(callback)
        if self.allocation is not None:
            return self._spread(run, chosen, self.allocation, tell)
        if self._measurable(run, chosen):
            try:
                return self._spread(run, chosen, make_allocation("sensitivity"), tell)
            except torch.OutOfMemoryError:
                raise
            except (DataError, RuntimeError) as error:
                if error is tell.stopped:
                    raise
                # An expert that no sample reaches, or outputs that are whole numbers.
        return self._spread(run, chosen, make_allocation("uniform"), tell)

    def _measurable(self, run: Run, chosen: Sequence[str]) -> bool:
        """Whether a recipe may spread the budget by sensitivities, which take the whole network to measure."""
        if self.effort is None or not self.data or run.several or run.shards:
            return False
        fixed = isinstance(self.sparsity, Mapping) or (self.form is not None and self.form.share is not None)
        return len(chosen) <= MANY_LAYERS and not fixed

    def _spread(
        self, run: Run, chosen: Sequence[str], spread: Allocation, tell: Measuring
    ) -> tuple[Goals, AllocationReport]:
        started, probe = run.clock(), None
        if spread.needs_data and run.fit is not None:
            lane = run.lanes()[0]
            lane.room = replace(lane.room, device=run.home)
            probe = Probe.of(lane, run.layers, run.held or run.fit, tell)
        goals = in_pattern(run.original, targets(run.original, chosen, self.sparsity, spread, probe), self.form)
        sizes = {name: weight_of(run.original, name).numel() for name in goals}
        kept = {name: goal.count(sizes[name]) / sizes[name] for name, goal in goals.items()}
        name = "per-layer" if isinstance(self.sparsity, Mapping) else spread.name
        return goals, AllocationReport(name, run.clock() - started, kept)


def asked_of(
    method: str | Pruner | None,
    options: Mapping[str, Any] | None,
    sparsity: SparsityRequest | None,
    pattern: str | Pattern | None,
    allocation: str | Allocation | None,
    compensate: bool | None,
    refine: bool | Refinement,
    effort: Effort | None,
    **others: Any,
) -> Asked:
    """The arguments of prune, as far as they can be checked without the model."""
    check_range("", "> 0 and finite", seconds=others["seconds"])
    if effort is None and method is None and not refine:
        effort = "default"
    if effort is not None and refine:
        raise ConfigError(f"refine must be left to the effort, got effort='{effort}' and refine; give one of the two")
    if effort is None and others["seconds"] is not None:
        given = others["seconds"]
        raise ConfigError(f"seconds must go with an effort, got {given} for a method alone; effort='default' does")
    pruner, form = make(method or DEFAULT_METHOD, options), parse_pattern(pattern)
    sparsity = share_asked(sparsity, form)
    check_pattern(form, pruner, allocation)
    spread = None if allocation is None else make_allocation(allocation)
    compensate = effort is not None and others["data"] if compensate is None else compensate
    if not others["data"]:
        _check_without(pruner, spread, compensate or others["settings"].batchnorm or bool(refine))
    pruner = _filled_in(pruner, method, options or {}, others["seed"], parse_memory(others["settings"].memory))
    return Asked(pruner, sparsity, form, spread, compensate, refine, effort, **others)


def _filled_in(
    pruner: Pruner, method: str | Pruner | None, options: Mapping[str, Any], seed: int, memory: float | None
) -> Pruner:
    """The run's seed and its share of the run's memory, for a method that has a say in them and did not say it."""
    if pruner.needs.seed and isinstance(method, str) and "seed" not in options:
        pruner = replace(pruner, seed=seed)  # type: ignore[type-var]
    own = getattr(pruner, "memory", None)
    if own is None or memory is None or "memory" in options or not isinstance(method, str | None):
        return pruner
    return replace(pruner, memory=min(own, max(memory / 8, LEAST_MEMORY) / 2**30))  # type: ignore[type-var]


def _check_without(pruner: Pruner, spread: Allocation | None, fits: bool) -> None:
    """Raise ConfigError where something cannot do without data."""
    if pruner.needs.passes != "none":
        raise ConfigError(f"data must be given for method '{pruner.name}', got None")
    if spread is not None and spread.needs_data:
        raise ConfigError(f"data must be given for allocation '{spread.name}', got None")
    if fits:
        raise ConfigError("data must be given for compensate, batchnorm and refine, got None")
