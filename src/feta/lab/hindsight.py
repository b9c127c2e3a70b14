"""Was the planner's advice good? Against the records of Table 1 and Figure 2, which ran every way to the end.

row      a network pruned by a method, refined or retrained or neither: accuracy and all its seconds
best     the most accurate row of the network that ends within the budget
regret   best - advised, in points of test accuracy
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feta.lab.experiments import latest
from feta.lab.planning import NEAR, Stage
from feta.lab.reproduce.fig2 import EXPERIMENT as fig2_cells
from feta.lab.reproduce.table1 import EXPERIMENT as table1_cells

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """What came of one way to the end."""

    net: str
    seed: int
    method: str
    stage: Stage
    accuracy: float  # test, percent
    validation: float | None
    seconds: float  # pruning included


@dataclass(frozen=True)
class Verdict:
    """An advice beside what would have been best."""

    net: str
    seed: int
    budget: float
    advised: Row
    best: Row
    spent: float = 0.0  # seconds on planning

    @property
    def regret(self) -> float:
        return self.best.accuracy - self.advised.accuracy

    @property
    def in_time(self) -> bool:
        return self.spent + self.advised.seconds <= self.budget

    @property
    def good(self) -> bool:
        """Ended in time, the best or as good as the best."""
        return self.in_time and self.regret <= NEAR + 1e-9


def rows_of(table1: Iterable[Record], fig2: Iterable[Record], sparsity: float, device: str) -> list[Row]:
    """Every way in the records, of a cell the last; a pruning that is in both is taken once."""
    found: dict[tuple[Any, ...], Row] = {}

    def add(r: Record, stage: Stage, accuracy: str, validation: str, *seconds: str) -> None:
        if r.get(accuracy) is None or r["sparsity"] != sparsity or r.get("device", device) != device:
            return
        spent = sum(r[name] for name in seconds)
        row = Row(r["net"], r["seed"], r["method"], stage, r[accuracy], r.get(validation), spent)
        found.setdefault((row.net, row.seed, row.method, stage), row)

    for r in latest(fig2, fig2_cells.key_fields):
        if r["refine"]:
            add(r, "refine", "accuracy", "validation", "prune_seconds", "refine_seconds")
        else:
            add(r, "prune", "accuracy", "validation", "prune_seconds")
    for r in latest(table1, table1_cells.key_fields):
        add(r, "prune", "accuracy", "validation", "prune_seconds")
        add(r, "retrain", "retrained_accuracy", "retrained_validation", "prune_seconds", "retrain_seconds")
    return list(found.values())


def find(rows: Iterable[Row], net: str, seed: int, method: str, stage: str) -> Row | None:
    wanted = (net, seed, method, stage)
    return next((row for row in rows if (row.net, row.seed, row.method, row.stage) == wanted), None)


def best_of(rows: Iterable[Row], net: str, seed: int, budget: float) -> Row | None:
    """The most accurate row of a network within the budget, the quicker of two."""
    fitting = [row for row in rows if (row.net, row.seed) == (net, seed) and row.seconds <= budget]
    return max(fitting, key=lambda row: (row.accuracy, -row.seconds), default=None)


def judge_advice(record: Record, rows: Sequence[Row]) -> Verdict | None:
    """An advice against the rows; None where they do not hold what it takes.

    A record with `carried_out` brings the advised row itself: retraining that the budget cuts short is in no table.
    """
    where = (record["net"], record["seed"])
    best = best_of(rows, *where, record["budget"])
    advised = find(rows, *where, record["method"], record["stage"])
    done = record.get("carried_out")
    if done is not None:
        names = (*where, record["method"], record["stage"])
        advised = Row(*names, done["accuracy"], done["validation"], done["seconds"])
    if best is None or advised is None:
        return None
    if advised.seconds <= record["budget"] and advised.accuracy > best.accuracy:
        best = advised
    return Verdict(*where, record["budget"], advised, best, record["spent"])


def always(method: str, stage: Stage, rows: Sequence[Row], asked: Iterable[Record]) -> list[Verdict]:
    """What the same advice every time would have got; thresholding alone where it does not end in time."""
    found = []
    for record in asked:
        where = (record["net"], record["seed"])
        row, best = find(rows, *where, method, stage), best_of(rows, *where, record["budget"])
        if row is None or row.seconds > record["budget"]:
            row = find(rows, *where, "threshold", "prune")
        if row is not None and best is not None:
            found.append(Verdict(*where, record["budget"], row, best))
    return found


def by_validation(rows: Sequence[Row], asked: Iterable[Record]) -> list[Verdict]:
    """What no plan can beat: every way run to its end, and the one chosen that validation data likes best."""
    seen = [replace(row, accuracy=row.validation) for row in rows if row.validation is not None]
    found = []
    for record in asked:
        where = (record["net"], record["seed"])
        liked, best = (best_of(some, *where, record["budget"]) for some in (seen, rows))
        row = liked and find(rows, *where, liked.method, liked.stage)
        if row is not None and best is not None:
            found.append(Verdict(*where, record["budget"], row, best))
    return found


def foretold(records: Iterable[Record], rows: Sequence[Row]) -> Iterator[tuple[Record, Row]]:
    """Every candidate that was said to fit, and did, beside what came of it."""
    for record in records:
        for candidate in record["candidates"]:
            row = find(rows, record["net"], record["seed"], candidate["method"], candidate["stage"])
            if candidate["fits"] and row is not None and row.seconds <= record["budget"]:
                yield candidate, row


def spreads_off(pairs: Iterable[tuple[Record, Row]]) -> list[float]:
    """How many spreads each expected accuracy was off, on the validation half."""
    return [
        abs(row.validation - candidate["accuracy"]["value"]) / candidate["accuracy"]["spread"]
        for candidate, row in pairs
        if row.validation is not None
    ]


def times_off(pairs: Iterable[tuple[Record, Row]]) -> list[float]:
    """Expected over measured seconds; those under a tenth of a second are left out."""
    return [candidate["seconds"]["value"] / row.seconds for candidate, row in pairs if row.seconds >= 0.1]


def summary(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Shares and means over all verdicts."""
    return {
        "advices": len(verdicts),
        "good": statistics.mean(v.good for v in verdicts),
        "in_time": statistics.mean(v.in_time for v in verdicts),
        "regret": statistics.mean(v.regret for v in verdicts),
    }
