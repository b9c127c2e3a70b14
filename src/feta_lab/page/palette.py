"""One look per series name: colour, marker shape, filled or hollow.

The hues are those of Okabe and Ito (https://jfly.uni-koeln.de/color/), moved a little until each has a
contrast of 3:1 with the page, light or dark, and every pair stays apart for the three kinds of colour
blindness (the tests measure both); the shapes say the same thing once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from feta_lab.page.blocks import Block, Chart, Fold, LineChart, Panels, Section

LIGHT = ("#065791", "#cf5c21", "#239a61", "#c069a4", "#13303a", "#d18300", "#2a9de4", "#5d5202", "#7d3fd1")
DARK = ("#2a85d9", "#f05c2e", "#1ab979", "#c56cab", "#b3c1c1", "#fdb418", "#9fd4ff", "#f8ec80", "#9a6bff")

# matplotlib's name of a shape, and its path within a circle of radius 4.7.
SHAPES = {
    "o": "M-3.7 0a3.7 3.7 0 1 0 7.4 0a3.7 3.7 0 1 0-7.4 0z",
    "s": "M-3.4-3.4h6.8v6.8h-6.8z",
    "^": "M0-4.6L4.3 3.2H-4.3z",
    "D": "M0-4.7L4.7 0L0 4.7L-4.7 0z",
    "v": "M0 4.6L4.3-3.2H-4.3z",
    "P": "M-1.5-4.4h3v2.9h2.9v3h-2.9v2.9h-3v-2.9h-2.9v-3h2.9z",
    "X": "M-4.2-2.1l2.1-2.1 2.1 2.1 2.1-2.1 2.1 2.1-2.1 2.1 2.1 2.1-2.1 2.1-2.1-2.1-2.1 2.1-2.1-2.1 2.1-2.1z",
    "p": "M0-4.6L4.4-1.4L2.7 3.7H-2.7L-4.4-1.4z",
    ">": "M4.6 0L-3.2 4.3V-4.3z",
}


@dataclass(frozen=True)
class Look:
    """How one series looks; `slot` is its number on the page."""

    slot: int

    @property
    def colour(self) -> int:
        return self.slot % len(LIGHT)

    @property
    def light(self) -> str:
        return LIGHT[self.colour]

    @property
    def round(self) -> int:
        return self.slot // len(LIGHT)

    @property
    def shape(self) -> str:
        # The second round of colours moves one shape on, so no pair of colour and shape comes twice.
        return tuple(SHAPES)[(self.slot + self.round) % len(SHAPES)]

    @property
    def hollow(self) -> bool:
        return self.round % 2 == 1


@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    name: str
    look: Look
    dashed: bool
    joined: bool
    drawn: bool

    @property
    def label(self) -> str:
        return self.name if self.drawn else f"{self.name} (no data)"


def assign(names: Iterable[str]) -> dict[str, Look]:
    """A look for every name, in order of first appearance."""
    return {name: Look(slot) for slot, name in enumerate(dict.fromkeys(names))}


def series_names(blocks: Iterable[Block]) -> list[str]:
    """The names of all series that share the colours of these blocks, in reading order, repeats included."""
    names: list[str] = []
    for block in blocks:
        match block:
            case LineChart():
                names += [series.name for series in block.series]
            case Panels():
                names += series_names(block.charts)
            case Section(own_colours=False) | Fold():
                names += series_names(block.blocks)
            case _:
                pass
    return names


def legend(charts: Iterable[Chart], looks: Mapping[str, Look]) -> list[Key]:
    """An entry per name, looking as the series does where it first appears."""
    lines = [chart for chart in charts if isinstance(chart, LineChart)]
    drawn = {series.name for chart in lines for series in chart.series if series.drawn}
    keys: dict[str, Key] = {}
    for chart in lines:
        for series in chart.series:
            look, name = looks[series.name], series.name
            keys.setdefault(name, Key(name, look, series.dashed, not chart.markers_only, name in drawn))
    return list(keys.values())
