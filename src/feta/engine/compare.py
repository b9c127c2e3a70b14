"""The result beside the original on held-out samples.

    error = ||Y' - Y|| / ||Y - its mean over the samples||

Y (samples, outputs) are the original's outputs, Y' the result's. An offset that all samples have tells nothing of a
network, and without it an error of 1 is that of a constant; scores before a softmax are taken without what all of a
sample have in common, which no answer depends on.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from feta.calibration.copies import shell
from feta.calibration.inputs import Batch, Merged, rows_of, size_of
from feta.calibration.lane import kept_rows
from feta.calibration.model import call, outputs_of
from feta.engine.run import Run
from feta.report import Held
from feta.tuning.matching import Match, match_for

COMPARED = 2**22  # values of outputs that are compared at once
ALIKE = 1e-12  # of the squares of outputs: what their changes over the samples must be to be more than rounding


@torch.no_grad()
def compared(run: Run, model: nn.Module) -> Held | None:
    """Where the two networks stand; None where they cannot be put side by side."""
    if run.held is None or run.apart:
        return None
    pruned, (match, first) = shell(model), likeness(run)
    scores = match.kind == "kl" and first.ndim > 1 and first.shape[-1] > 1
    answers = scores and first.ndim == 2  # one set of scores for each sample
    pivot = _rows(first, match)[0].double()
    # Outputs of another width, as values for each token of texts of any length, are a column of numbers.
    wide, narrow = _Sums(pivot, loose=scores and not match.probabilities), _Sums(pivot[:1])
    same, count, other_shape = 0.0, 0, False
    for batch in run.held.share(run.ranks):
        expected, found = (outputs_of(call(network, batch)) for network in (run.original, pruned))
        # Of a model whose answers are as many as it finds things, or apart for each sample: the first one's is had.
        if found.shape != expected.shape or (not count and not _together(run, batch, expected)):
            other_shape = True
            continue
        count += len(expected)
        same += float((expected.argmax(-1) == found.argmax(-1)).sum()) if answers else 0.0
        one, other = _rows(expected, match), _rows(found, match)
        if expected.ndim > 2 and (keep := kept_rows(batch, expected)) is not None:
            # What a network says of padding nobody reads, and layers were not fitted to it.
            one, other = (each[keep.to(each.device)] for each in (one, other))
        if one.shape[-1] == len(pivot):
            wide.add(one, other)
        else:
            narrow.add(one.reshape(-1, 1), other.reshape(-1, 1))
    same, total, different = run.ranks.sum([same, count, other_shape])
    if different:
        return None
    run.ranks.add_(wide.values)
    run.ranks.add_(narrow.values)
    far, right = map(sum, zip(wide.far_and_right(), narrow.far_and_right(), strict=True))
    error = math.sqrt(far / right) if right != 0 else float(far > 0)
    known = same / total if total and answers else None
    return Held(run.held.count, error if math.isfinite(error) else None, known)


def likeness(run: Run) -> tuple[Match, Tensor]:
    """What the original's outputs are, and some of them."""
    assert run.held is not None
    result = call(run.original, next(iter(Merged(run.held))))
    return match_for(run.original, result, run.settings.loss), outputs_of(result)


@dataclass
class _Sums:
    """Sums over rows of outputs, taken from the first row: what never changes may be -1e9, or infinite."""

    first: Tensor  # (outputs,) float64
    loose: bool = False  # whether what all outputs of a row have in common is left out
    values: Tensor = field(init=False)  # (6, outputs): wrong, values, squares, squares as they are, changes, rows

    def __post_init__(self) -> None:
        self.values = self.first.new_zeros(6, len(self.first))

    def add(self, expected: Tensor, found: Tensor) -> None:
        size = max(1, COMPARED // len(self.first))  # outputs of a language model are large
        for part in zip(expected.split(size), found.split(size), strict=True):
            one, other = (torch.where(rows == self.first, 0, rows - self.first) for rows in part)
            changes, plain = (one != 0).sum(0), part[0].double().square().sum(0)
            if self.loose:
                one, other = (rows - rows.mean(-1, True) for rows in (one, other))
            wrong, squares = (other - one).square().sum(0), one.square().sum(0)
            rows = torch.full_like(plain, len(one))
            self.values += torch.stack([wrong, one.sum(0), squares, plain, changes, rows])

    def far_and_right(self) -> tuple[float, float]:
        """The square of how far they are, and of what that is relative to."""
        wrong, values, squares, plain, changes, rows = self.values
        spread = float((squares - values.square() / rows.clamp_min(1)).clamp_min(0).sum())
        size = float((plain[changes > 0] if bool(changes.any()) else plain).sum())
        # Samples that are all alike have no spread to be compared with.
        return float(wrong.sum()), size if spread <= ALIKE * size else spread


def _rows(output: Tensor, match: Match) -> Tensor:
    """A row for each sample, token or place of an image."""
    output = output[:, None] if output.ndim == 1 else output.movedim(1, -1) if match.channels else output
    return output.flatten(0, -2)


def _together(run: Run, batch: Batch, expected: Tensor) -> bool:
    """Whether the outputs are those of all samples of the batch, and not of its first alone."""
    first, count = outputs_of(call(run.original, rows_of(batch, slice(1)))), size_of(batch)
    # Outputs may be cut to the longest sample of a batch.
    return count == 1 or first.numel() * count == expected.numel() or len(first) * count == len(expected)
