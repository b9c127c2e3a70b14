"""The tables of pretrained models from benchmark records; see docs/figures.py.

Only cells over a whole test file are shown. A mean is over the calibration sets; `2 of 3` after it says that the
others failed. The best method of a sparsity is bold. Seconds are medians over all sparsities and calibration sets.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from origin import origin

from feta_lab.records import Record, groups

AXES = ("net", "seed", "allocation", "sparsity", "method")


@dataclass(frozen=True)
class Table:
    """One kind of record: what is judged, and which way is better."""

    kind: str
    score: str
    best: Callable[[Iterable[float]], float]
    methods: tuple[str, ...]


TABLES = (
    Table("resnet", "accuracy", max, ("threshold", "sparsegpt", "alps", "feta", "default:alps", "default")),
    Table("smollm2", "perplexity", min, ("wanda", "sparsegpt", "alps", "feta", "default:alps", "default")),
)
CALLED = {"default:alps": "alps, then the fits of default"}


def markdown(table: Table, records: Sequence[Record]) -> str:
    """Two lines per network and allocation: scores at each sparsity, and seconds."""
    shares = sorted({one["sparsity"] for one in records})
    methods = [method for method in table.methods if any(one["method"] == method for one in records)]
    head = [f"{table.score} at {' / '.join(f'{100 * share:g}' for share in shares)} %"]
    head += [CALLED.get(method, method) for method in methods]
    lines = [head, ["---"] * len(head)]
    for names, cells in groups(records, "net", "allocation", *differing(records)).items():
        dense = cells[0][f"dense_{table.score}"]
        lines.append([f"{', '.join(map(str, names))} (dense {dense:.1f})", *scores(table, methods, cells, shares)])
        times = [seconds(cells, method) for method in methods]
        lines += [["seconds", *times]] if any(time != "–" for time in times) else []
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def differing(records: Sequence[Record]) -> list[str]:
    """Settings that are not the same in all records: means never mix them, and lines are named by them."""
    settings = [name for name in records[0]["key"] if name not in AXES]
    return [name for name in settings if len({one["key"].get(name) for one in records}) > 1]


def scores(table: Table, methods: Sequence[str], cells: Sequence[Record], shares: Sequence[float]) -> list[str]:
    """Each method's scores, one after another; of methods that print the same score all are bold."""
    found, texts = groups(cells, "method", "sparsity"), {method: list[str]() for method in methods}
    for share in shares:
        runs = {method: found.get((method, share), []) for method in methods}
        means = {method: mean(same, table.score) for method, same in runs.items()}
        printed = {method: round(value, 1) for method, value in means.items() if value is not None}
        # A mean over the sets that did not fail is no better than one over all of them.
        whole = [value for method, value in printed.items() if not failures(runs[method], table.score)]
        for method, same in runs.items():
            text = f"{printed[method]:.1f}" if method in printed else "failed" if same else "–"
            bold = method in printed and whole and printed[method] == table.best(whole)
            text = f"**{text}**" if bold and not failures(same, table.score) else text
            texts[method].append(text + (failures(same, table.score) if method in printed else ""))
    return [" / ".join(texts[method]) for method in methods]


def mean(cells: Sequence[Record], score: str) -> float | None:
    values = [one[score] for one in cells if one.get(score) is not None]
    return statistics.mean(values) if values else None


def failures(cells: Sequence[Record], score: str) -> str:
    done = sum(one.get(score) is not None for one in cells)
    return "" if done == len(cells) else f" ({done} of {len(cells)})"


def seconds(cells: Sequence[Record], method: str) -> str:
    """Cells that ran beside others have no time to show."""
    values = [one["seconds"] for one in cells if one["method"] == method and one["timed"] and "seconds" in one]
    return f"{statistics.median(values):.1f}" if values else "–"


def on_cpu(records: Sequence[Record], others: Sequence[Record]) -> str:
    """What the default call comes to where the clock cuts its fits; others: the same cells on a GPU."""
    told = []
    for one in sorted(records, key=lambda one: one["sparsity"]):
        same = {name: one[name] for name in ("net", "sparsity", "method")}
        there = mean([other for other in others if same.items() <= other.items()], "accuracy")
        told.append(f"{one['accuracy']:.1f} at {100 * one['sparsity']:g} % ({there:.1f} on the GPU)")
    steps = {one["stages"][-1]["message"].split(" (")[0] for one in records}
    minutes = statistics.mean(one["seconds"] for one in records) / 60
    return (
        f"on one CPU thread the default call on {records[0]['net']} ends at {' and '.join(told)}: the clock cut its "
        f"fits to {' or '.join(sorted(steps))}, and it took {minutes:.0f} minutes"
    )


def tables(records: Sequence[Record]) -> str:
    texts = []
    for table in TABLES:
        mine = [one for one in records if one["kind"] == table.kind and one["limit"] is None]
        if shown := [one for one in mine if one["method"] in table.methods]:
            texts += [origin(shown), markdown(table, shown)]
    return "\n\n".join(texts)
