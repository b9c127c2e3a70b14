"""An experiment: a plan, the cells it asks for, how one of them is run, and the table they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from feta_lab.experiments import Record
from feta_lab.reproduce.plan import Plan
from feta_lab.workers import Cell
from feta_lab.zoo import train_missing

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Table:
    """A table for people, of text alone."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def __str__(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([self.title, *text])


def label(cell: Cell) -> str:
    """What progress calls a cell."""
    names = ("net", "seed", "method", "layer", "sparsity")
    said = [f"seed {cell[name]}" if name == "seed" else str(cell[name]) for name in names if name in cell]
    return ", ".join(said) + (", refined" if cell.get("refine") else "")


def train_networks(plan: Any, tell: Tell) -> None:
    """Train the networks of a plan that are not there yet, `jobs` at a time."""
    lines = train_missing(
        plan.nets,
        range(plan.seeds),
        plan.networks,
        data=plan.data,
        data_dir=plan.data_dir,
        device=plan.where,
        jobs=plan.jobs,
    )
    for line in lines:
        tell(f"trained {line}")


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper. The functions take the plan first; they run in other processes too."""

    name: str
    title: str
    plan: type[Plan]
    key_fields: tuple[str, ...]
    cells: Callable[[Any], list[Cell]]
    prepare: Callable[[Any, Cell], Mapping[str, Any]]
    run_one: Callable[[Any, Cell], Mapping[str, Any]]
    table: Callable[[Sequence[Record]], Table]
    quick: Mapping[str, Any] = field(default_factory=dict)  # settings of --quick
    timed: bool = True  # cells run one at a time
    label: Callable[[Cell], str] = label
    train: Callable[[Any, Tell], None] = train_networks
