"""What a pruned layer is worth on rows that no solver saw, and what is done about it.

    error = ||rho(A U + bias + R) - B|| / ||B||      over held-out samples, behind batch-norm, shortcut and activation

The same measure for every method. A layer that thresholding would serve better is not handed out as good.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from feta.calibration.stream import LayerStream, Source
from feta.engine.fold import Folded
from feta.errors import DataError
from feta.problem import ActivationStream, Status
from feta.sparsity import top_k_mask


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
    return tensor.to(frame.view.weight.dtype).to(frame.view.solve_dtype)


def errors_of(
    choices: Sequence[Choice], judges: Sequence[Folded], streams: Sequence[ActivationStream]
) -> list[float]:
    """The relative error of each choice, in one pass; infinite for weights that the layer's precision cannot hold."""
    wrong, right = [0.0] * len(choices), 0.0
    for group, (judge, stream) in enumerate(zip(judges, streams, strict=True)):
        candidates = [choice.behind(group, judge) for choice in choices]
        for A, original, R in stream.rows():
            B = judge.through.activation(original)
            right += float(B.square().sum(dtype=torch.float64))
            for index, (U, bias) in enumerate(candidates):
                Z = A @ U if bias is None else torch.addmm(bias, A, U)
                Z = Z if R is None else Z.add_(R)
                wrong[index] += float((judge.through.activation(Z) - B).square().sum(dtype=torch.float64))
    if not math.isfinite(right):
        raise DataError(
            f"layer '{judges[0].view.name}': outputs must be finite, got NaN or infinite ones on the data"
        )
    errors = ((w / right) ** 0.5 if right > 0 else float(w > 0) for w in wrong)
    return [error if math.isfinite(error) else math.inf for error in errors]


def thresholded(frames: Sequence[Folded], counts: Sequence[int], means: Sequence[Tensor | None]) -> list[Choice]:
    """The safe choices: the largest weights as they are, and with biases that make up for what is gone."""
    plain, refitted = [], []
    for frame, count, mean in zip(frames, counts, means, strict=True):
        own = frame.view.matrix(frame.group)
        W, bias = frame.W, frame.bias
        U = W.where(top_k_mask(own.abs(), count), 0)
        plain.append((U, bias))
        refitted.append((U, bias if bias is None or mean is None else bias + mean.to(W.dtype) @ (W - U)))
    return [Choice(frames, plain), Choice(frames, refitted)]


def verdict(error: float, safe: float, falls_back: bool) -> tuple[Status, str] | None:
    """What is to be said of a method's error beside that of thresholding; None: nothing."""
    if error > safe + ROUNDING and falls_back:
        return Status.FELL_BACK, (
            f"thresholded instead: on held-out samples the method's error is {error:.3g}, thresholding's {safe:.3g}; "
            "more samples, or a lower sparsity for this layer, would help"
        )
    if error > MARGIN * safe + ROUNDING or error > 1:
        beside = f"thresholding has {safe:.3g}" if error > safe else "no output at all would have 1"
        return Status.POOR, f"the error on held-out samples is {error:.3g}, {beside}; prune this layer less"
    return None


def few_rows(source: Source, frame: Folded, ratio: float | None) -> str | None:
    """How many samples would do, where there are too few for a layer's inputs; None: there are enough.

    ratio: of the error on held-out rows to that on fitted ones. For d parameters fitted to n rows its square is about
    (n + d) / (n - d), which tells how many rows these samples are worth.
    """
    samples, d_in = source.lane.inputs.count, len(frame.W)
    rows = LayerStream(source, frame.view, frame.through, frame.group).n_rows
    if rows < d_in:
        needed = -(-4 * d_in * samples // max(rows, 1))
        return f"{rows} rows for {d_in} inputs are too few; {needed} samples would do"
    if ratio is not None and ratio > OVERFIT:
        spent = 1 - 2 / (ratio**2 + 1)  # also where the fitted error is zero, and the ratio infinite
        needed = int(10 * samples * spent)
        return f"the error is {ratio:.1f} times that on fitted rows: too few samples; about {needed} would do"
    return None


ROUNDING = 1e-6
MARGIN = 1.05  # an error this many times that of thresholding is worse by more than chance
OVERFIT = 2.0  # times as large an error on held-out rows as on fitted ones
