"""Means of the recipes' records: over networks, and only over what every recipe finished.

A column is a number of rows and a sparsity. Its means are over the same (network, seed) for all recipes: those that
every recipe finished there. A recipe that finished none at all does not count. A network is the mean of its seeds,
and networks count the same.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from recipes import ALL

from feta_lab.networks import PRESETS
from feta_lab.records import Record, groups

Place = tuple[int | str, float]  # a number of rows and a sparsity
Member = tuple[str, int]  # a network and its seed


@dataclass(frozen=True)
class Column:
    """What each recipe lost at one place, over the same networks and seeds."""

    means: Mapping[str, float]  # of recipes that finished any
    members: frozenset[Member]  # that all of these finished
    begun: int  # how many were begun by any
    failed: frozenset[str]  # recipes that were begun and finished none
    seconds: Mapping[str, float]  # medians; none of recipes whose cells ran beside others


def column(records: Sequence[Record], score: str) -> Column:
    begun = {recipe: {member(one): one for one in mine} for (recipe,), mine in groups(records, "recipe").items()}
    done = {recipe: {m: one for m, one in mine.items() if score in one} for recipe, mine in begun.items()}
    done = {recipe: mine for recipe, mine in done.items() if mine}
    members = frozenset.intersection(*map(frozenset, done.values())) if done else frozenset()
    shared = {recipe: {m: mine[m] for m in members} for recipe, mine in done.items() if members}
    return Column(
        means={recipe: mean({m: one[score] for m, one in mine.items()}) for recipe, mine in shared.items()},
        members=members,
        begun=len(set().union(*begun.values())),
        failed=frozenset(begun) - set(done),
        seconds={
            recipe: statistics.median(one["seconds"] for one in mine.values())
            for recipe, mine in shared.items()
            if all(one["timed"] for one in mine.values())
        },
    )


def member(record: Record) -> Member:
    net, data = record["net"], record["data_name"]
    return net if PRESETS[net].data == data else f"{net} on {data}", record["seed"]


def mean(lost: Mapping[Member, float]) -> float:
    networks = {net for net, _ in lost}
    return statistics.mean(statistics.mean(v for (net, _), v in lost.items() if net == one) for one in networks)


def columns(records: Iterable[Record], score: str) -> dict[Place, Column]:
    """Few rows first, then the lower sparsity."""
    places = groups(records, "rows", "sparsity")
    return {place: column(places[place], score) for place in sorted(places, key=lambda at: (at[0] == ALL, at))}
