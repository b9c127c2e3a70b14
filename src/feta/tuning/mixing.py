"""More inputs out of few: mixtures, shifts and splices of unlabelled samples.

The original itself says what its outputs on them are, so that they need no labels and cannot be wrong. The more often
each sample would be seen, the larger their share: who has 60,000 samples and ten passes needs hardly any.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from feta.calibration.inputs import Batch, size_of
from feta.errors import check_fields
from feta.gates import gated

ENOUGH, PASSES = 15, 60  # passes over the samples: from these on something is changed, after so many more all of it
SMALL = 8  # sides of images that are too small to be shifted
ALIKE = 0.85  # share of answers that must stay the same where an image is mirrored


@gated
@dataclass(frozen=True)
class Mixing:
    """Shares of a batch that are changed."""

    mix: float = 0.5  # x becomes λx + (1 - λ)x', λ uniform; a text goes on as another one from some place on
    shift: float = 0.5  # images alone: moved by a few pixels, the border repeated
    mirror: float = 0.0  # images alone: left and right exchanged
    rewrite: float = 0.3  # texts alone: words that the original writes anew, each after those before it

    def __post_init__(self) -> None:
        check_fields(self, "in [0, 1]", *vars(self))

    def for_passes(self, passes: float) -> "Mixing":
        part = min(1.0, max(0.0, passes - ENOUGH) / PASSES)
        return Mixing(self.mix * part, self.shift * part, self.mirror * part, self.rewrite)

    def __call__(self, x: Batch, other: Batch, generator: torch.Generator) -> Batch:
        """A batch changed; `other` is one of as many samples."""
        if isinstance(x, dict):
            return self._dict(x, other, generator)  # type: ignore[arg-type]
        if not x.is_floating_point():
            return self._spliced({"": x}, {"": other}, generator)[""]  # type: ignore[dict-item]
        if is_image(x):
            x = _shifted(_mirrored(x, self.mirror, generator), self.shift, generator)
        return self._blended([x], [other], generator)[0]  # type: ignore[list-item]

    def _dict(self, x: dict[str, Tensor], other: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        size = size_of(x)
        rows = [key for key, part in x.items() if isinstance(part, Tensor) and part.ndim and len(part) == size]
        if any(not x[key].is_floating_point() for key in rows):
            return x | self._spliced({key: x[key] for key in rows}, other, generator)
        return x | dict(
            zip(rows, self._blended([x[k] for k in rows], [other[k] for k in rows], generator), strict=True)
        )

    def _blended(self, xs: list[Tensor], others: list[Tensor], generator: torch.Generator) -> list[Tensor]:
        count = round(self.mix * len(xs[0]))
        if not count:
            return xs
        weight = torch.rand(count, generator=generator)

        def blend(x: Tensor, other: Tensor) -> Tensor:
            here = weight.to(x).view(-1, *[1] * (x.ndim - 1))
            return torch.cat([torch.lerp(other[:count], x[:count], here), x[count:]])

        return [blend(x, other) for x, other in zip(xs, others, strict=True)]

    def _spliced(
        self, x: dict[str, Tensor], other: dict[str, Tensor], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """The first part of a text and the last of another, if all have positions in dimension 1."""
        lengths = {part.shape[1] if part.ndim > 1 else 0 for part in x.values()}
        count, length = round(self.mix * size_of(x)), max(lengths)
        if not count or len(lengths) > 1 or length < 2:
            return x
        cut = torch.randint(1, length, (count, 1), generator=generator)
        first = torch.arange(length) < cut

        def splice(part: Tensor, others: Tensor) -> Tensor:
            here = first.to(part.device).view(count, length, *[1] * (part.ndim - 2))
            return torch.cat([torch.where(here, part[:count], others[:count]), part[count:]])

        return {key: splice(part, other[key]) for key, part in x.items()}


def is_image(x: Batch) -> bool:
    """Whether samples are images: one to four channels of at least SMALL by SMALL pixels."""
    return (
        isinstance(x, Tensor)
        and x.ndim == 4
        and x.is_floating_point()
        and x.shape[1] <= 4
        and min(x.shape[2:]) >= SMALL
    )


def _chosen(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    return torch.randperm(len(x), generator=generator)[: round(share * len(x))].to(x.device)


def _mirrored(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    if not share:
        return x
    some = _chosen(x, share, generator)
    return x.index_copy(0, some, x[some].flip(-1))


def _shifted(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Images moved by up to a tenth of their sides: all in one look-up."""
    if not share:
        return x
    some = _chosen(x, share, generator)

    def places(size: int) -> Tensor:
        by = torch.randint(-(size // 10), size // 10 + 1, (len(some), 1), generator=generator)
        return (torch.arange(size) + by).clamp(0, size - 1).to(x.device)

    rows, columns = places(x.shape[2])[:, :, None], places(x.shape[3])[:, None, :]
    moved = x[some[:, None, None], :, rows, columns].movedim(3, 1)
    return x.index_copy(0, some, moved)
