"""What shrinking a network reports: its size and speed before and after, and the width of every layer."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from feta.pages import notebook
from feta.pages.words import amount
from feta.report import RefineReport, StageReport


class Scale(NamedTuple):
    """A network's size, and how long it takes for a batch on the device it was shrunk on."""

    parameters: int
    multiply_adds: int  # of its layers' weights, for one sample
    milliseconds: float


class Narrowed(NamedTuple):
    """Units that go or stay together: the layer they belong to, how many there were and how many there are."""

    name: str
    before: int
    after: int


@dataclass(frozen=True)
class ShrinkReport:
    """A whole run; `to_json` gives every field, `repr` a table."""

    share: float | None  # of the multiply-adds that was to go; None where the caller said what stays
    seconds: float
    device: str
    seed: int
    before: Scale
    after: Scale
    batch: int  # samples that the milliseconds are for
    groups: tuple[Narrowed, ...]
    refused: dict[str, str]  # layer whose outputs are all kept -> why
    errors: dict[str, float]  # refitted layer -> relative error of its outputs on held-out rows
    allocation: str  # how what goes was spread over the layers
    tried: dict[str, float | None]  # the ways that were tried, and how far from the original they led
    batchnorm: str = ""
    stages: tuple[StageReport, ...] = ()
    refinement: RefineReport | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"groups": [group._asdict() for group in self.groups]}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False)

    def __repr__(self) -> str:
        one, other = self.before, self.after
        lines = [
            self.headline(),
            _change("multiply-adds", one.multiply_adds, other.multiply_adds),
            _change("parameters", one.parameters, other.parameters),
            f"milliseconds for {self.batch} samples on {self.device}: "
            f"{one.milliseconds:.3g} → {other.milliseconds:.3g}",
        ]
        width = max((len(group.name) for group in self.groups), default=0)
        lines += [f"{group.name.ljust(width)}  {group.before} → {group.after}" for group in self.groups]
        return "\n".join([*lines, *self.notes()])

    def _repr_html_(self) -> str:
        whats = ("parameters", "multiply-adds", f"milliseconds for {self.batch} samples")
        sizes = zip(whats, map(amount, self.after), map(amount, self.before), strict=True)
        widths = notebook.rows_of(("layer", "before", "after"), self.groups)
        return notebook.fragment(
            self.headline(), sizes, self.notes(), notebook.folded(f"{len(self.groups)} widths", widths)
        )

    def headline(self) -> str:
        gone = 100 * (1 - self.after.multiply_adds / max(self.before.multiply_adds, 1))
        return f"{gone:.1f} % of the multiply-adds removed, {self.seconds:.2f} s"

    def notes(self) -> list[str]:
        """What there is to say beside the widths."""
        left = [f"left as it is: {', '.join(names)}: {why}" for why, names in _by_reason(self.refused).items()]
        return [*left, *([self.batchnorm] if self.batchnorm else []), *map(str, self.stages)]


def _change(what: str, before: float, after: float) -> str:
    return f"{what}: {amount(before).strip()} → {amount(after).strip()}"


def _by_reason(refused: dict[str, str]) -> dict[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for name, why in refused.items():
        found.setdefault(why, []).append(name)
    return dict(found)
