"""Rows to fit, drawn without end, with the original's outputs on them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.inputs import Batch, Merged, alike, generator_of, joined, rows_of, size_of
from feta.calibration.lane import kept_rows
from feta.calibration.model import call, float_dtype, outputs_of, place
from feta.ranks import ALONE, Ranks
from feta.tuning.batches import Batch as Step
from feta.tuning.mixing import Mixing
from feta.tuning.recorder import CHECKED, Recorder, recordable
from feta.tuning.rewriting import Rewriter
from feta.tuning.stepping import in_halves

TABLE_BYTES = 2**31  # of samples that are kept on the device, in one piece


@dataclass
class Original:
    """The network whose outputs are matched, and where the network that is fitted works."""

    model: nn.Module
    device: torch.device
    dtype: torch.dtype  # of the network that is fitted

    def __post_init__(self) -> None:
        self._quick: Any = self._run
        if self.device.type == "cuda":
            self._quick = Recorder(self._run, checked=0 if recordable(self.model) else CHECKED)

    @torch.no_grad()
    def outputs(self, x: Batch) -> Tensor:
        return outputs_of(call(self.model, x, self.device, float_dtype(self.model))).to(self.dtype)

    def quick_outputs(self, x: Batch) -> Tensor:
        """Outputs on batches that are drawn, as steps need them; the next call may overwrite them."""
        found: Tensor = (
            self._quick(x) if isinstance(x, Tensor) and x.device.type == self.device.type else self._run(x)
        )
        return found

    def _run(self, x: Batch) -> Tensor:
        with in_halves(self.model, self.device):
            return self.outputs(x)

    def close(self) -> None:
        """Let go of what was recorded, now and not whenever garbage is collected."""
        self._quick = self._run


class Rows:
    """The rows to fit: all of them on the device where they have one shape and there is room, else as they come."""

    def __init__(self, inputs: Iterable[Batch], device: torch.device, dtype: torch.dtype) -> None:
        self.inputs, self.device, self.dtype = inputs, device, dtype
        self.table = table_of(inputs, device, dtype)

    def pairs(self, size: int, generator: torch.Generator) -> Iterator[tuple[Batch, Batch]]:
        """Without end: a batch to fit, and as many rows to mix it with."""
        while self.table is not None:
            rows = torch.randint(size_of(self.table), (2, size), generator=generator)
            yield rows_of(self.table, rows[0]), rows_of(self.table, rows[1])
        while True:
            for batch in Merged(self.inputs):
                here = place(batch, self.device, self.dtype)
                order = torch.randperm(size_of(batch), generator=generator)
                for rows in order.split(size):
                    others = order[torch.randint(len(order), (len(rows),), generator=generator)]
                    yield rows_of(here, rows), rows_of(here, others)


@dataclass(frozen=True)
class Draws:
    """So many batches of rows to fit, mixed."""

    rows: Rows
    original: Original
    mixing: Mixing
    batch_size: int
    length: int  # in batches
    seed: int
    rewriter: Rewriter | None = None  # of texts
    ranks: Ranks = ALONE  # every one of them draws all batches, and takes its share of each
    by_rows = False

    @property
    def fixed(self) -> bool:
        """Whether all batches are tensors of one shape."""
        return isinstance(self.rows.table, Tensor)

    def over(self, number: int) -> Iterator[Step]:
        order, noise = (generator_of(self.seed + more, number) for more in (0, 1))
        for _, (x, other) in zip(range(self.length), self.rows.pairs(self.batch_size, order), strict=False):
            mixed = self.mixing(x, other, noise)
            if self.rewriter is not None:
                mixed = self.rewriter(mixed, self.original.quick_outputs(mixed), self.mixing.rewrite, noise)
            size, mixed = size_of(mixed), own_part(mixed, self.ranks)
            target = targets(self.original.quick_outputs, mixed) if size_of(mixed) else None
            yield Step(mixed, target, size)

    def some(self) -> Iterator[Any]:
        """A few batches as they are drawn."""
        for _, (x, _) in zip(range(2 + CHECKED), self.rows.pairs(self.batch_size, generator_of(0, 0)), strict=False):
            yield x


def own_part(batch: Batch, ranks: Ranks) -> Batch:
    """This process's share of a batch that all have; perhaps nothing."""
    return rows_of(batch, slice(ranks.rank, None, ranks.count)) if ranks.many else batch


def targets(outputs: Callable[[Batch], Tensor], x: Batch) -> Any:
    """The original's outputs; with the positions that count, where some are padding."""
    output = outputs(x)
    keep = kept_rows(x, output) if output.ndim > 2 else None
    return output if keep is None else (output, keep.view(output.shape[:-1]))


def table_of(inputs: Iterable[Batch], device: torch.device, dtype: torch.dtype) -> Batch | None:
    """All samples in one batch on the device, if they have one shape and there is room for them."""
    held: list[Batch] = []
    bytes_ = 0
    for batch in inputs:
        here = place(batch, device, dtype, copy=False)
        parts = list(here.values()) if isinstance(here, dict) else [here]
        bytes_ += sum(part.numel() * part.element_size() for part in parts if isinstance(part, Tensor))
        if bytes_ > TABLE_BYTES or not all(isinstance(part, Tensor) for part in parts):
            return None
        held.append(here)
    return joined(held) if all(alike(held[0], batch) for batch in held[1:]) else None
