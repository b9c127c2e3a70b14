"""What a pruned layer is worth on rows that no solver saw, and what is done about it.

    error = ||rho(A U + bias + R) - B|| / ||B||      over held-out samples, behind batch-norm, shortcut and activation

The same measure for every method. A layer that thresholding would serve better is not handed out as good.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from feta.calibration.fold import Folded
from feta.calibration.statistics import ranks_of
from feta.calibration.stream import LayerStream, Source
from feta.errors import DataError
from feta.layers import cast
from feta.pages.words import counted
from feta.problem import Activation, ActivationStream, Status
from feta.sparsity import Sparsity

ROUNDING = 1e-5
MARGIN = 1.05  # an error this many times that of thresholding is worse by more than chance
ENOUGH = 200  # samples, where so few are given that nothing is known of what would be enough
LEAST = 5  # held-out samples that tell something; each token of a text is one
OVERFIT = 2.0  # times as large an error on held-out rows as on fitted ones


class Judged(NamedTuple):
    """What the layers of a run are judged by."""

    of: int  # samples that were given
    by: int  # of them held out; each token of a text counts
    different: int  # of the samples that were given


class Choice(NamedTuple):
    """Weights for every group of a layer, in the frame they were found in."""

    frames: Sequence[Folded]
    weights: Sequence[tuple[Tensor, Tensor | None]]  # U and bias

    def write(self) -> None:
        for frame, (U, bias) in zip(self.frames, self.weights, strict=True):
            frame.write(U, bias)

    def behind(self, group: int, judge: Folded) -> tuple[Tensor, Tensor | None]:
        """U and bias as they will be written, seen where the judge looks."""
        frame, (U, bias) = self.frames[group], self.weights[group]
        scale = judge.through.scale
        if scale is not None and frame.norm is None:
            U, bias = rounded(U, frame) * scale, judge.behind(None if bias is None else rounded(bias, frame))
        elif scale is not None:
            U = rounded(U / scale.where(scale != 0, 1), frame) * scale
        else:
            U, bias = rounded(U, frame), None if bias is None else rounded(bias, frame)
        return U, bias


def rounded(tensor: Tensor, frame: Folded) -> Tensor:
    """Values as the layer's own precision holds them."""
    return cast(tensor, frame.view.weight.dtype).to(frame.view.solve_dtype)


class Error(NamedTuple):
    """Of a layer's outputs: over all of them alike, and as their importance weighs them."""

    plain: float
    weighted: float


def errors_of(
    choices: Sequence[Choice],
    judges: Sequence[Folded],
    streams: Sequence[ActivationStream],
    importance: Tensor | None = None,
) -> list[Error]:
    """The relative errors of each choice, in one pass; infinite for weights that the layer's precision cannot hold.

    importance: of the outputs of all groups; without, they count alike.
    """
    wrong: list[list[Tensor]] = [[] for _ in choices]
    right: list[Tensor] = []
    for group, (judge, stream) in enumerate(zip(judges, streams, strict=True)):
        candidates = [choice.behind(group, judge) for choice in choices]
        rho, sums = judge.through.activation, None
        for A, original, R in stream.rows():
            B = rho(original)
            found = [B, *(_outputs(A, U, bias, R, rho).sub_(B) for U, bias in candidates)]
            # In float64 from the start: squares of large outputs are no float32.
            norms = [torch.linalg.vector_norm(part, dim=0, dtype=torch.float64) for part in found]
            squares = torch.stack(norms).square()
            sums = squares if sums is None else sums + squares
        sums = ranks_of(stream).total(sums)
        if sums is not None:
            right.append(sums[0])
            for errors, part in zip(wrong, sums[1:], strict=True):
                errors.append(part)
    name, whole = judges[0].view.name, torch.cat(right) if right else torch.zeros(1)
    if not bool(torch.isfinite(whole).all()):
        raise DataError(f"layer '{name}': outputs must be finite, got NaN or infinite ones on the data")
    weights = torch.ones_like(whole) if importance is None else importance.to(whole).square()
    return [Error(*(_ratio(torch.cat(part), whole, w) for w in (torch.ones_like(whole), weights))) for part in wrong]


def _outputs(A: Tensor, U: Tensor, bias: Tensor | None, R: Tensor | None, rho: Activation) -> Tensor:
    Z = A @ U if bias is None else torch.addmm(bias, A, U)
    return rho(Z if R is None else Z.add_(R))


def _ratio(wrong: Tensor, right: Tensor, weights: Tensor) -> float:
    """The relative error from squares of each output."""
    error, size = float((weights * wrong).sum()), float((weights * right).sum())
    found = (error / size) ** 0.5 if size > 0 else float(error > 0)
    return found if math.isfinite(found) else math.inf


def thresholded(frames: Sequence[Folded], goals: Sequence[Sparsity], means: Sequence[Tensor | None]) -> list[Choice]:
    """The safe choices: the largest weights as they are, and with biases that make up for what is gone."""
    plain, refitted = [], []
    for frame, goal, mean in zip(frames, goals, means, strict=True):
        own = frame.view.matrix(frame.group)
        W, bias = frame.W, frame.bias
        U = W.where(goal.mask(own.abs()), 0)
        plain.append((U, bias))
        refitted.append((U, bias if bias is None or mean is None else bias + mean.to(W.dtype) @ (W - U)))
    return [Choice(frames, plain), Choice(frames, refitted)]


def silenced(choice: Choice, judges: Sequence[Folded]) -> Choice:
    """Outputs that lost all their weights give zero, behind a batch-norm too, unless a bias was fitted to that."""
    quiet = []
    for group, judge in enumerate(judges):
        U, bias = choice.behind(group, judge)
        if bias is not None and judge.bias is not None:
            bias = bias.where(U.any(0) | ~torch.isclose(bias, judge.bias), 0)
        quiet.append((U, bias))
    return Choice(judges, quiet)


def verdict(
    error: Error, safe: Error, falls_back: bool, margin: float = MARGIN, slack: float = ROUNDING
) -> tuple[Status, str] | None:
    """What is to be said of a method's error beside that of thresholding; None: nothing.

    Outputs are compared as their importance weighs them: that is what a method may have worked for.
    margin, slack: how much worse it may be by chance, and by rounding.
    """
    if falls_back and (error.weighted > safe.weighted + slack or error.plain > max(1.0, safe.plain)):
        return Status.FELL_BACK, (
            f"thresholded instead: on held-out samples the method's error is {error.weighted:.3g}, thresholding's "
            f"{safe.weighted:.3g}; more samples, or a lower sparsity for this layer, would help"
        )
    if error.weighted > margin * safe.weighted + slack or error.plain > 1 + slack:
        worse = error.weighted > safe.weighted
        beside = f"thresholding has {safe.weighted:.3g}" if worse else "no output at all would have 1"
        shown = error.weighted if worse else error.plain
        return Status.POOR, f"the error on held-out samples is {shown:.3g}, {beside}; prune this layer less"
    return None


def few_rows(source: Source, frame: Folded, ratio: float | None, judged: Judged) -> str | None:
    """How many samples would do, where there are too few for a layer's inputs; None: there are enough.

    ratio: of the error on held-out rows to that on fitted ones. For d parameters fitted to n rows its square is about
    (n + d) / (n - d), which tells how many rows these samples are worth.
    """
    samples, d_in = source.lane.inputs.count, len(frame.W)
    rows, few = LayerStream(source, frame.view, frame.through, frame.group).n_rows, too_few(judged)
    rows = rows * judged.different // judged.of  # those of equal samples are the same ones
    if few is not None and judged.different < judged.of / 2:
        return few
    if rows < d_in:
        needed = max(-(-4 * d_in * samples // max(rows, 1)), 0 if few is None else ENOUGH)
        different = "" if judged.different == judged.of else "different "
        return f"{counted(rows, f'{different}row')} for {d_in} inputs: too few; {needed} {different}samples would do"
    if few is not None:
        return few
    if ratio is not None and ratio > OVERFIT:
        spent = 1 - 2 / (ratio**2 + 1)  # also where the fitted error is zero, and the ratio infinite
        needed = int(10 * samples * spent)
        return f"the error is {ratio:.1f} times that on fitted rows: too few samples; about {needed} would do"
    return None


def too_few(judged: Judged) -> str | None:
    """How many samples would do, where a run has too few to judge anything by; None: there are enough."""
    cure = f"{ENOUGH} samples would do"
    if judged.different < min(judged.of / 2, ENOUGH / 2):
        few = f"of {judged.of} samples only {judged.different} differ, which is too few"
        return f"{few}; {ENOUGH} different samples would do"
    if judged.by < LEAST:
        some = f"only {judged.by}" if judged.by else "none"
        return f"of {counted(judged.of, 'sample')} {some} could be held out; {cure}"
    return None
