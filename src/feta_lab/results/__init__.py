"""A results folder: the records of its sub-folders, by experiment.

    results/table1/records.jsonl   results/fig2/records.jsonl   results/gpu/records.jsonl ...

A folder may have any name: each record says its kind and key. Every cell counts once. When a cell has several
records, the last one in a file counts; when several folders hold it, the folder named like the experiment counts,
then the last by name. Cells of two settings are never averaged: the setting that most cells of a network share
counts. Records that do not count are passed over, and the page says so.
"""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from feta.errors import FileError
from feta.files.plain import object_from_json
from feta_lab.records import Record, groups, latest, read
from feta_lab.results.forms import FORMS, Form, check, known

__all__ = ["PassedOver", "Record", "Results", "Source", "gather", "unretrained"]


@dataclass(frozen=True)
class Source:
    """The records of one kind in one folder."""

    name: str
    kind: str
    records: tuple[Record, ...]


@dataclass(frozen=True)
class PassedOver:
    """Records of a folder that do not count; 0 where its file could not be read."""

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

    def of(self, *kinds: str) -> list[Record]:
        """The records of these kinds."""
        return [record for source in self.sources if source.kind in kinds for record in source.records]


def gather(folder: Path) -> Results:
    """Read the records of a folder and of its sub-folders: experiments and benchmarks, each cell once.

    folder: holds `records.jsonl`, or folders that do. Records of other kinds are left out.

    Raises FileError if there is no record to show, or if a record lacks a field or has a wrong value in one.
    """
    if not folder.is_dir():
        raise FileError(f"results must be a folder, got {folder}; make one with 'feta reproduce' or 'feta bench'")
    found, unread = list[Source](), list[PassedOver]()
    for place in [folder, *sorted(place for place in folder.iterdir() if place.is_dir())]:
        path, name = place / "records.jsonl", place.resolve().name
        if not path.is_file():
            continue
        try:
            records = read(path)
        except FileError as error:
            if place == folder or _begins_as_ours(path):
                raise
            unread.append(PassedOver(name, 0, str(error)))
            continue
        found += _sources(path, name, records)
        if nameless := sum("kind" not in record or "key" not in record for record in records):
            unread.append(PassedOver(name, nameless, "they have no kind and key: an older feta made them"))
    if not found:
        wanted = "must hold records (table1/records.jsonl, fig2/records.jsonl ...)"
        raise FileError(f"{folder} {wanted}, got none; make some with 'feta reproduce' or 'feta bench'")
    return _once(found, unread)


def _begins_as_ours(path: Path) -> bool:
    """Whether a file that cannot be read begins with a record to show: then it is broken, not somebody else's."""
    try:
        first = object_from_json(path.read_text(encoding="utf-8", errors="replace").partition("\n")[0])
    except (OSError, ValueError):
        return False
    return known(first)


def _sources(path: Path, name: str, records: Sequence[Record]) -> list[Source]:
    """The last record of every cell in a file, by kind: several experiments may share a file."""
    ours = [(n, r) for n, r in enumerate(records, start=1) if known(r) and "key" in r]
    for number, record in ours:
        check(record, f"{path}, line {number}")
    kinds = groups((record for _, record in ours), "kind")
    return [Source(name, kind, tuple(latest(mine).values())) for (kind,), mine in kinds.items()]


def _once(sources: Sequence[Source], unread: Sequence[PassedOver]) -> Results:
    """Every cell once, in one setting."""
    # Kinds of one form are averaged together; a benchmark is shown by itself.
    pools: dict[object, list[Source]] = {}
    for number, source in enumerate(sources):
        pools.setdefault(number if source.kind == "bench" else id(FORMS[source.kind]), []).append(source)
    why: dict[int, tuple[str, str]] = {}  # the folder of a record, by its id, and why it does not count
    for pool in pools.values():
        # The last by name first, and folders named like their experiment before them all.
        pool.sort(key=lambda source: source.name, reverse=True)
        pool.sort(key=lambda source: source.name != source.kind)
        why |= _others(pool, FORMS[pool[0].kind])
    kept = (replace(source, records=tuple(r for r in source.records if id(r) not in why)) for source in sources)
    said = (PassedOver(folder, count, reason) for (folder, reason), count in Counter(why.values()).items())
    return Results(tuple(source for source in kept if source.records), (*unread, *said))


def _others(pool: Sequence[Source], form: Form) -> dict[int, tuple[str, str]]:
    """The records that do not count: an earlier source has the cell, or more cells have another setting."""
    passed: dict[int, tuple[str, str]] = {}
    first: dict[str, tuple[int, Record]] = {}
    for number, source in enumerate(pool):
        for record in source.records:
            there, same = first.setdefault(json.dumps(record["key"], sort_keys=True), (number, record))
            if same is not record:
                passed[id(record)] = (source.name, f"the same cells are in {pool[there].name}")
    settings: dict[str, dict[str, list[tuple[int, int, Record]]]] = {}
    for order, (number, record) in enumerate(first.values()):
        place, setting = map(json.dumps, form.split(record["key"]))
        settings.setdefault(place, {}).setdefault(setting, []).append((number, order, record))
    for held in settings.values():
        # Of two settings that as many cells have, the first source's counts, and in it the last written.
        usual = max(held, key=lambda one: (len(held[one]), -held[one][0][0], held[one][-1][1]))
        most = json.loads(usual)
        for other in [setting for setting in held if setting != usual]:
            here = json.loads(other)
            names = [name for name in sorted({*here, *most}) if here.get(name) != most.get(name)]
            words = ", ".join(f"{name} {here.get(name)} instead of {most.get(name)}" for name in names)
            for number, _, record in held[other]:
                reason = f"other settings than most cells of {record.get('net')}: {words}"
                passed[id(record)] = (pool[number].name, reason)
    return passed


def unretrained(results: Results, wanted: Collection[str] | None = None, timed: bool = False) -> list[Record]:
    """Cells that were pruned and neither refined nor retrained.

    They are the cells of Figure 2. A network that Figure 2 lacks is taken from one benchmark without compensation,
    so that no network counts twice: the benchmark that ran most of the wanted methods on it.

    wanted: the methods that count when benchmarks are compared; by default all.
    timed: whether only methods with times that compare count.
    """
    chosen = [record for record in results.of("fig2") if not record["refine"]]
    have = {record["net"] for record in chosen}
    offers: dict[str, dict[tuple[int, Any], list[Record]]] = {}
    for number, source in enumerate(results.sources):
        for r in source.records if source.kind == "bench" else ():
            if not r["compensate"] and r["net"] not in have:
                # In the words of Figure 2.
                extra = {"refine": False, "prune_seconds": r.get("seconds"), "refine_seconds": 0.0}
                cell = {**r, **extra, "timed": r.get("timed", True)}
                offers.setdefault(r["net"], {}).setdefault((number, r.get("device")), []).append(cell)

    def worth(mine: Sequence[Record]) -> tuple[int, int]:
        known = {r["method"] for r in mine if r["timed"] or not timed}
        return len(known if wanted is None else known & set(wanted)), len(mine)

    return chosen + [record for choices in offers.values() for record in max(choices.values(), key=worth)]
