"""What shrinking a network reports: its size and speed before and after, and the width of every layer."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from feta.pages import notebook
from feta.pages.words import amount
from feta.report import RefineReport, StageReport

SLOWER = 1.1  # times the milliseconds of before; less is noise


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
    seconds: float  # all that was waited for
    device: str  # where it ran
    seed: int  # of every draw
    before: Scale  # parameters, multiply-adds, bytes and milliseconds
    after: Scale  # the same of the smaller network
    batch: int  # samples that the milliseconds are for
    groups: tuple[Narrowed, ...]  # of channels that go together, with how many stayed
    refused: dict[str, str]  # layer whose outputs are all kept -> why
    errors: dict[str, float]  # refitted layer -> relative error of its outputs on held-out rows
    allocation: str  # how what goes was spread over the layers
    tried: dict[str, float | None]  # the ways that were tried, and how far from the original they led
    batchnorm: str = ""  # what was done about batch-norms, and why
    stages: tuple[StageReport, ...] = ()  # of an effort, in order
    refinement: RefineReport | None = None  # of the fit whose network is the result

    def to_dict(self) -> dict[str, Any]:
        scales = {"before": self.before._asdict(), "after": self.after._asdict()}
        return asdict(self) | scales | {"groups": [group._asdict() for group in self.groups]}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False)

    def headline(self) -> list[str]:
        """All but the widths, a line each."""
        one, other = self.before, self.after
        gone = 100 * (1 - other.multiply_adds / max(one.multiply_adds, 1))
        slower = other.milliseconds > SLOWER * one.milliseconds
        lines = [
            f"{gone:.1f} % of the multiply-adds removed, {self.seconds:.2f} s",
            _change("multiply-adds", one.multiply_adds, other.multiply_adds),
            _change("parameters", one.parameters, other.parameters),
            f"milliseconds for {self.batch} samples on {self.device}: "
            f"{one.milliseconds:.3g} → {other.milliseconds:.3g}"
            + (": slower here; time it where it will run" if slower else ""),
        ]
        lines += [f"left as it is: {', '.join(names)}: {why}" for why, names in _by_reason(self.refused).items()]
        lines += [self.batchnorm] if self.batchnorm else []
        return [*lines, *map(str, self.stages)]

    def __repr__(self) -> str:
        width = max((len(group.name) for group in self.groups), default=0)
        widths = [f"{group.name.ljust(width)}  {group.before} → {group.after}" for group in self.groups]
        lines = self.headline()
        return "\n".join([*lines[:4], *widths, *lines[4:]])

    def _repr_html_(self) -> str:
        first, *said = self.headline()
        whats = ("parameters", "multiply-adds", f"milliseconds for {self.batch} samples")
        sizes = zip(whats, map(amount, self.after), map(amount, self.before), strict=True)
        widths = notebook.rows_of(("layer", "before", "after"), self.groups)
        numbers = notebook.rows_of(("", "after", "before"), sizes)
        return notebook.fragment(first, numbers, said[3:], notebook.folded(f"{len(self.groups)} widths", widths))


def _change(what: str, before: float, after: float) -> str:
    return f"{what}: {amount(before).strip()} → {amount(after).strip()}"


def _by_reason(refused: dict[str, str]) -> dict[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for name, why in refused.items():
        found.setdefault(why, []).append(name)
    return dict(found)
