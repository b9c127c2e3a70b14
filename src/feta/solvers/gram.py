"""FeTa on the Gram matrix: the ReLU objective at an exact number of non-zeros, for about one pass.

    minimize over V   F(V) = (1/m) ||rho(A~ V) - B||^2  <=  (1/m) ||A~ V - T||^2      with k non-zero weights

    1. one pass: H = A~' A~
    2. support: l0-constrained ADMM on H (solvers.support_admm), exact top-k over the layer
    3. refit: every column exactly on its support (solvers.refit)
    4. re-target: the new C = A~' T (solvers.targets), and back to 3, or to 2 for a support that suits the new targets

A step is kept only when it lowers F. Weights on the outputs enter the choice of the support alone: they say which
outputs get the weights, not how an output is fitted.
"""

from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from feta.problem import Activation, Status
from feta.ranks import ALONE, Ranks
from feta.solvers.refit import Refit, masked_refit
from feta.solvers.refit_cg import Centred, factors_are_cheaper
from feta.solvers.relu_swaps import HELD, TINY, Candidates
from feta.solvers.support_admm import Admm, SupportResult, support_admm
from feta.solvers.swaps import FEW, SMALL, squares
from feta.solvers.targets import StreamedTargets
from feta.solvers.wide import RowsSystem
from feta.sparsity import Pattern, kept_mask

# rho grows more slowly than in ALPS, which finds a better support, until hardly a weight moves.
SLOW = Admm(rho=0.03, schedule=((0.1, 1.3), (0.0, 1.6)), every=4, relaxation=1.6, rest=1.0)
# What takes its place in large layers: nearly as good a support in two thirds of the iterations.
COARSE = replace(SLOW, rho=0.05, schedule=((0.1, 1.4), (0.0, 1.8)))
DENSE = 0.2  # share of kept weights above which over-relaxed steps lead to a worse support
LARGE = 2**27  # d_in^2 * d_out from which on a layer is large
RIDGE, LINEAR_RIDGE = 1e-3, 1e-2  # the second for linear layers of this many inputs: tried on a language model
WIDE = 256
STARVED, MOST = 0.08, 0.03  # a large layer's ridge for one row for each input, and at the most


@dataclass(frozen=True)
class GramSettings:
    """How much work the solver may put in."""

    retargets: int = 3
    searches: int = 1  # for a support, the first included
    ridge: float | None = None  # of the mean of H's diagonal, towards the weights before; None: by the layer
    tolerance: float = 0.0  # the solve ends when a step lowers F by less than this share of it
    admm: Admm = SLOW


@dataclass(frozen=True)
class GramSystem:
    """The least-squares problems of a layer from H (d_in [+ 1], d_in [+ 1]), the sums over all rows."""

    H: Tensor
    d_in: int
    ranks: Ranks = ALONE  # processes that have the same, and share the work

    def support(
        self,
        C: Tensor,
        V: Tensor,
        k: int,
        admm: Admm,
        weights: Tensor | None,
        ridge: float = 0.0,
        pattern: Pattern | None = None,
    ) -> SupportResult:
        """The support of k weights for the problem that the refit solves."""
        d_in = self.d_in
        swaps = pattern is None or pattern.share is not None  # blocks have no exchanges
        if swaps and d_in <= FEW and d_in * V[:d_in].numel() <= SMALL:  # all supports are tried by `swapped`
            any_mask = kept_mask(V[:d_in].abs(), k, pattern)
            return SupportResult(any_mask, V, 0, 0.0, Status.OK)
        search = partial(support_admm, prunable=d_in, column_weights=weights, pattern=pattern)
        return search(self.H, C, V, k, admm, ridge=ridge, ranks=self.ranks)

    def swapped(
        self, C: Tensor, V: Tensor, mask: Tensor, weights: Tensor | None, ridge: float, pattern: Pattern | None = None
    ) -> Tensor:
        """The mask after exchanges of weights, where the layer is small enough to look at all of them."""
        return squares(self.H, C, mask, weights, ridge, V, pattern)

    def refit(
        self,
        C: Tensor,
        mask: Tensor,
        V: Tensor,
        ridge: float,
        start: Tensor | None = None,
        error: float | None = None,
    ) -> Refit:
        """The refit pulled to V: exact where factors are cheap, else by conjugate gradients from `start`, or V."""
        if factors_are_cheaper(mask):
            return masked_refit(self.H, C, mask, ridge=ridge, toward=V, ranks=self.ranks)
        return self.centred(ridge).refit(C, mask, V, V if start is None else start, error)

    def centred(self, ridge: float) -> Centred:
        """Made once for all refits of a layer."""
        known: dict[float, Centred] = self.__dict__.setdefault("_centred", {})
        return known.setdefault(ridge, Centred(self.H, self.d_in, ridge, self.ranks))


@dataclass
class GramSolve:
    """One layer's solve: where it stands, and the steps that take it on."""

    system: GramSystem | RowsSystem
    reader: StreamedTargets
    settings: GramSettings
    V: Tensor  # (d_in [+ 1], d_out), zero off the mask
    mask: Tensor  # (d_in, d_out) bool
    objectives: list[float] = field(default_factory=list)  # F at the start of the re-targeting, then of each step
    iterations: int = 0  # of ADMM
    status: Status = Status.OK
    damping: float = 0.0  # the most that a factor needed
    near: Tensor | None = None  # where the last search for a support ended, for the refit that follows
    error: float | None = None  # of the layer, where a refit measured it
    steps: int = 0  # of conjugate gradients, over all refits; none where columns are factored
    pattern: Pattern | None = None  # of the mask

    @property
    def large(self) -> bool:
        return len(self.mask) * self.mask.numel() >= LARGE

    @property
    def ridge(self) -> float:
        """That of the settings, or one for the kind of layer: more where a large one has few rows for each input."""
        if self.settings.ridge is not None:
            return self.settings.ridge
        starved = STARVED * len(self.mask) / self.reader.problem.rows.n_rows if self.large else 0.0
        linear = self.reader.problem.activation is Activation.LINEAR and len(self.mask) >= WIDE
        return max(LINEAR_RIDGE if linear else RIDGE, min(starved, MOST))

    def support(self, C: Tensor, keep: int) -> Tensor:
        """The mask of the weights to keep for the cross terms C, searched for from V."""
        problem = self.reader.problem
        admm = COARSE if self.large and self.settings.admm == SLOW else self.settings.admm
        if keep > DENSE * self.mask.numel():
            admm = replace(admm, relaxation=1.0)
        found = self.system.support(C, self.V, keep, admm, problem.output_weights, self.ridge, self.pattern)
        self.iterations += found.iterations
        if found.status is Status.NOT_CONVERGED and self.status is Status.OK:
            self.status = Status.NOT_CONVERGED
        self.damping = max(self.damping, found.damping)
        problem.report("support", iterations=found.iterations, rho=found.rho)
        self.near = found.D
        mask = found.mask[: len(problem.W)]
        return self.system.swapped(C, self.V, mask, problem.output_weights, self.ridge, self.pattern)

    def refit(self, C: Tensor, mask: Tensor) -> Tensor:
        """The weights on the mask that are best for C, the ridge pulling to V, or to the trained weights."""
        start = self.V if self.near is None else self.near
        # Pulled to the refit before, a layer with few rows would be let go step by step.
        toward = self.reader.problem.trained if self.large else self.V
        refit = self.system.refit(C, mask, toward, self.ridge, start, self.error)
        self.near, self.error, self.steps = None, refit.error, self.steps + refit.steps
        if refit.status is not Status.OK:
            self.status, self.damping = refit.status, max(self.damping, refit.damping)
        return refit.V.to(self.V.dtype)

    def exchange(self) -> None:
        """Exchanges of weights judged after the ReLU, where the layer is small enough to fit every candidate."""
        problem, mask = self.reader.problem, self.mask
        if problem.activation is not Activation.RELU or len(mask) * mask.numel() > TINY:
            return
        if self.pattern is not None and self.pattern.share is None:  # blocks have no exchanges
            return
        chunks = self.reader.all_rows()
        if any(rows.R is not None for rows in chunks):
            return
        A, Z = (torch.cat([getattr(rows, name).cpu().float() for rows in chunks]) for name in ("A", "Z"))
        B = problem.fit.rho(Z)
        some = torch.randperm(len(A), generator=torch.Generator().manual_seed(0))[:HELD]
        A, B = A[some], B[some]
        X = torch.cat([A, A.new_ones(len(A), len(self.V) - len(mask))], 1)
        candidates = Candidates(problem.fit, X, B, problem.trained.cpu().float(), len(mask), self.pattern)
        weights = None if problem.output_weights is None else problem.output_weights.cpu()
        new = candidates.improved(mask.cpu(), weights)
        trial = replace(self, mask=new.to(mask.device), V=candidates.weights(new).to(self.V), objectives=[])
        trial.retarget()
        if trial.objectives[-1] < self.objectives[-1]:
            self.V, self.mask, self.status, self.damping = trial.V, trial.mask, trial.status, trial.damping
            self.objectives.append(trial.objectives[-1])

    def retarget(self) -> None:
        """New targets and a refit, again and again; the first few times with a new support of as many weights."""
        reader, settings, mask = self.reader, self.settings, self.mask
        if reader.problem.activation is Activation.LINEAR:  # the targets do not move: the first refit was the last
            return
        value, C = reader.at(self.V)
        self.objectives.append(value)
        before, weight = self.V, 1.0  # Nesterov's sequence, begun anew whenever a step is refused
        tight = False  # whether the targets at hand are those of the DC slope
        # Of a large layer's re-targets the first gives nearly all of the gain on rows that were not seen.
        rounds = 1 if self.large and settings.retargets == GramSettings.retargets else settings.retargets
        for round_ in range(1, rounds + 1):
            if round_ < settings.searches:
                mask = self.support(C, int(mask.sum()))
                before, weight = torch.cat([self.V[: len(mask)].where(mask, 0), self.V[len(mask) :]]), 1.0
            refit = self.refit(C, mask)
            heavier = (1 + (1 + 4 * weight**2) ** 0.5) / 2
            push = (weight - 1) / heavier
            trial = refit + push * (refit - before)
            last = round_ == rounds  # nothing follows that would need its targets
            value, C_there = reader.at(trial, targets=not last)
            reader.problem.report("retarget", objective=value, round=round_)
            gain = self.objectives[-1] - value
            if gain >= 0:
                before, weight = refit, heavier
                self.V, self.mask, C, tight = trial, mask, C_there, False
                self.objectives.append(value)
                if gain < settings.tolerance * self.objectives[-2]:
                    break
            elif push > 0 or mask is not self.mask:
                mask, before, weight = self.mask, self.V, 1.0
            elif tight or last:
                break
            else:
                # Some outputs have died, where the convex bound is not tight: the DC slope is.
                C, tight = reader.at(self.V, revive=False)[1], True


def solve_gram(
    system: GramSystem | RowsSystem,
    reader: StreamedTargets,
    keep: int,
    settings: GramSettings,
    pattern: Pattern | None = None,
) -> GramSolve:
    """The reader's layer with `keep` non-zeros, in a pattern or anywhere."""
    problem, everything = reader.problem, torch.ones_like(reader.problem.W, dtype=torch.bool)
    solve = GramSolve(system, reader, settings, problem.trained, everything, pattern=pattern)
    C = reader.start()
    solve.mask = solve.support(C, keep)
    solve.V = solve.refit(C, solve.mask)
    del C
    solve.retarget()
    solve.exchange()
    return solve
