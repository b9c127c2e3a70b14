"""Accuracy against sparsity, as text: a row per curve, a column per sparsity."""

from __future__ import annotations

from collections.abc import Sequence

from feta_lab.experiments import Record
from feta_lab.reproduce.experiment import Table
from feta_lab.reproduce.summary import accuracy, groups


def curves(title: str, records: Sequence[Record], names: Sequence[str], means: Sequence[str]) -> Table:
    """Records with the same values under `names` make a curve; `means` are averaged over all of it."""
    shares = sorted({record["sparsity"] for record in records})
    rows = []
    for key, members in groups(records, names):
        at = [[record for record in members if record["sparsity"] == share] for share in shares]
        head = (*map(str, key), *(accuracy(members, name) for name in means))
        rows.append((*head, *(accuracy(part, "accuracy") for part in at)))
    columns = (*names, *(name.replace("_", " ") for name in means), *(f"{100 * s:g} %" for s in shares))
    return Table(title, columns, rows)
