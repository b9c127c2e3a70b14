"""A results folder: its sub-folders' records, by experiment.

    results/table1/records.jsonl   results/fig2/records.jsonl   results/fig3a ...   any other: a benchmark

A folder may have any name, for a record's fields tell its kind. Every cell counts once: in a folder its last record;
of several folders the one named like the experiment, then the last by name; of several settings the one that most
cells of the network share. What does not count is passed over, and said to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from feta.errors import FileError
from feta_lab.experiments import Key, key_of, latest
from feta_lab.kinds import FORMS, Fields, Form, Kind, Record, check, kind_of, named
from feta_lab.records import read

__all__ = ["Kind", "PassedOver", "Record", "Results", "Source", "gather", "unretrained"]

# Kinds whose records are averaged together; benchmarks are shown each by itself.
POOLS: tuple[tuple[Kind, ...], ...] = (("table1",), ("fig2",), ("fig3a", "fig3b"), ("fig3c",))


@dataclass(frozen=True)
class Source:
    """The records of one kind in one folder."""

    name: str
    kind: Kind
    records: tuple[Record, ...]


@dataclass(frozen=True)
class PassedOver:
    """Records of a folder that do not count; none where its file could not be read."""

    folder: str
    records: int
    why: str

    def __str__(self) -> str:
        return f"passed over: {self.records} records of {self.folder}: {self.why}"


@dataclass(frozen=True)
class Results:
    """Everything that was found."""

    sources: tuple[Source, ...]
    passed_over: tuple[PassedOver, ...] = ()

    def of(self, *kinds: Kind) -> list[Record]:
        return [record for source in self.sources if source.kind in kinds for record in source.records]

    def names(self, *kinds: Kind) -> str:
        """The folders of these kinds, for a page to name."""
        return ", ".join(source.name for source in self.sources if source.kind in kinds)


def gather(folder: Path) -> Results:
    """Read the records of a folder and of its sub-folders; others than experiments and benchmarks are passed by."""
    if not folder.is_dir():
        raise FileError(
            f"results must be a folder, got {folder}; make one with 'feta reproduce' or 'feta bench'"
        )
    places = [folder, *sorted(place for place in folder.iterdir() if place.is_dir())]
    found: list[Source] = []
    unread: list[PassedOver] = []
    for place in places:
        path, name = place / "records.jsonl", place.resolve().name
        if not path.is_file():
            continue
        try:
            records = read(path)
        except FileError as error:
            if place == folder or named(name):
                raise
            unread.append(PassedOver(name, 0, str(error)))  # somebody else's, for all we know
            continue
        found += _sources(path, name, records)
    if not found:
        raise FileError(
            f"{folder} must hold records (table1/records.jsonl, fig2/records.jsonl ...), got none; "
            "make some with 'feta reproduce' or 'feta bench'"
        )
    return _once(found, unread)


def _sources(path: Path, name: str, records: Sequence[Record]) -> list[Source]:
    """The records of a file by kind: two experiments may have shared it."""
    kinds: dict[Kind, list[Record]] = {}
    for number, record in enumerate(records, start=1):
        kind = kind_of(record, name)
        if kind is not None:
            check(record, kind, f"{path}, line {number}")
            kinds.setdefault(kind, []).append({**FORMS[kind].defaults, **record})
    return [Source(name, kind, tuple(latest(mine, FORMS[kind].identity))) for kind, mine in kinds.items()]


def _once(sources: Sequence[Source], unread: Sequence[PassedOver]) -> Results:
    """Every cell once, in one setting."""
    pools = [[source for source in sources if source.kind in kinds] for kinds in POOLS]
    pools += [[source] for source in sources if source.kind == "bench"]
    why: dict[int, tuple[str, str]] = {}  # of a record, by its id
    for pool in filter(None, pools):
        # The last by name first, those named like their experiment before them all.
        pool.sort(key=lambda source: source.name, reverse=True)
        pool.sort(key=lambda source: source.name != source.kind)
        form = FORMS[pool[0].kind]
        why |= {id(line.record): (pool[line.source].name, reason) for line, reason in _others(pool, form)}
    kept = (
        replace(source, records=tuple(record for record in source.records if id(record) not in why))
        for source in sources
    )
    said = (PassedOver(folder, count, reason) for (folder, reason), count in Counter(why.values()).items())
    return Results(tuple(source for source in kept if source.records), (*unread, *said))


class _Line(NamedTuple):
    source: int  # in its pool
    record: Record


def _others(pool: Sequence[Source], form: Form) -> Iterator[tuple[_Line, str]]:
    """What is not to count, and why: a cell that a source before has, or of a setting that fewer cells have."""
    first: dict[Key, _Line] = {}
    for line in (_Line(n, record) for n, source in enumerate(pool) for record in source.records):
        there = first.setdefault(key_of(line.record, form.identity), line)
        if there is not line:
            yield line, f"the same cells are in {pool[there.source].name}"
    left = list(first.values())
    for group, fields in form.settings:
        usual = _usual(left, group, fields)
        for line in left:
            here, most = key_of(line.record, fields), usual[key_of(line.record, group)]
            if here != most:
                pairs = [(f, a, b) for f, a, b in zip(fields, here, most, strict=True) if a != b]
                words = ", ".join(f"{field} {value} instead of {common}" for field, value, common in pairs)
                yield line, f"other settings than most cells of {line.record.get('net')}: {words}"
        left = [one for one in left if key_of(one.record, fields) == usual[key_of(one.record, group)]]


def _usual(lines: Sequence[_Line], group: Fields, fields: Fields) -> dict[Key, Key]:
    """Of each group the setting that most cells have; of two, the first source's, there the last written."""
    found: dict[Key, dict[Key, list[int]]] = {}
    for number, (_, record) in enumerate(lines):
        found.setdefault(key_of(record, group), {}).setdefault(key_of(record, fields), []).append(number)

    def rank(numbers: list[int]) -> tuple[int, int, int]:
        return len(numbers), -lines[numbers[0]].source, numbers[-1]

    return {place: max(held, key=lambda one: rank(held[one])) for place, held in found.items()}


def unretrained(
    results: Results, wanted: Collection[str] | None = None, timed: bool = False
) -> tuple[list[Record], str]:
    """Cells pruned and neither refined nor retrained, and where they come from.

    Those of Figure 2. For a network that it lacks, those of one benchmark without compensation, so that no network
    counts twice: the one that ran most of the wanted methods on it (by default: most methods).
    """
    chosen = [record for record in results.of("fig2") if not record["refine"]]
    have = {record["net"] for record in chosen}
    names = [results.names("fig2")] if chosen else []
    offers: dict[str, list[tuple[tuple[int, int], str, list[Record]]]] = {}
    for source in results.sources:
        if source.kind != "bench":
            continue
        plain = [_as_pruned(record) for record in source.records if not record["compensate"]]
        for net, device in dict.fromkeys((r["net"], r.get("device")) for r in plain):
            mine = [r for r in plain if (r["net"], r.get("device")) == (net, device)]
            known = {r["method"] for r in mine if r["timed"] or not timed}
            rank = (len(known if wanted is None else known & set(wanted)), len(mine))
            offers.setdefault(net, []).append((rank, source.name, mine))
    for net, choices in offers.items():
        if net not in have:
            _, name, mine = max(choices, key=lambda choice: choice[0])
            chosen += mine
            names.append(name)
    return chosen, ", ".join(dict.fromkeys(names))


def _as_pruned(record: Record) -> Record:
    """A benchmark's cell in the words of Figure 2."""
    extra = {"refine": False, "prune_seconds": record.get("seconds"), "refine_seconds": 0.0}
    return {**record, **extra, "timed": record.get("timed", True)}
