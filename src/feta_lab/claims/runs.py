"""Cells at 90 % sparsity by network, method and seed, and the gain of one method over another."""

from collections.abc import Mapping, Sequence

from feta_lab import paper
from feta_lab.records import groups
from feta_lab.results import Record
from feta_lab.results.summaries import at_sparsity, by_setting

EQUAL = 0.1  # points within which two accuracies count as equal: 5 images of a test half of 5,000

Runs = Mapping[str, Mapping[int, Record]]


def runs_of(records: Sequence[Record]) -> Mapping[str, Runs]:
    """network -> method -> seed -> record, at the paper's sparsity; cells without a result are left out."""
    found = {}
    for net, mine in by_setting(at_sparsity(records, paper.SPARSITY)).items():
        methods = groups((record for record in mine if record["accuracy"] is not None), "method")
        found[net] = {method: {record["seed"]: record for record in held} for (method,), held in methods.items()}
    return found


def shared(runs: Runs, ours: str, theirs: str) -> list[tuple[Record, Record]]:
    """The records of two methods, seed by seed, for the seeds that both have."""
    mine, other = runs.get(ours, {}), runs.get(theirs, {})
    return [(mine[seed], other[seed]) for seed in sorted(set(mine) & set(other))]


def gains(runs: Runs, ours: str, theirs: str = "threshold") -> list[float]:
    """How many points of accuracy one method is ahead of another, seed by seed."""
    return [a["accuracy"] - b["accuracy"] for a, b in shared(runs, ours, theirs)]
