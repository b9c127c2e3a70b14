"""Tables of the records of Figure 2 and Table 1: the paper's methods, and what comes after; see docs/figures.py."""

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from methods_table import bold, lines_of
from origin import origin

from feta_lab.claims import judge_claims
from feta_lab.page.report import WORDS
from feta_lab.records import Record, groups
from feta_lab.results import gather

PAPER = ("threshold", "net-trim", "lobs", "corenet", "feta-svrg", "feta")
AFTER = ("threshold", "alps", "exact-obs", "feta-svrg", "feta")


def paper(fig2: Sequence[Record]) -> str:
    """The methods of the paper and both of FeTa's solvers: accuracy without retraining, and seconds."""
    lines = [["network (dense accuracy)", *PAPER]]
    for (net,), same in groups([one for one in fig2 if not one["refine"]], "net").items():
        cells = {method: each for (method,), each in groups(same, "method").items()}
        values = [statistics.mean(one["accuracy"] for one in cells[method]) for method in PAPER]
        spent = [statistics.median(one["prune_seconds"] for one in cells[method]) for method in PAPER]
        lines.append([named(net, same), *bold(values, max(values), 1)])
        lines.append(["seconds", *map(short, spent)])
    return f"{lines_of(lines)}\n\n{origin(fig2)}"


def after(fig2: Sequence[Record], table1: Sequence[Record]) -> str:
    """Accuracy pruned, refined without labels and retrained with them; in brackets the seconds of the stage."""
    lines = [["network (dense accuracy)", "method", "pruned", "+ refined", "or + retrained"]]
    for (net,), same in groups(fig2, "net").items():
        rows = []
        for method in AFTER:
            stages = groups([one for one in same if one["method"] == method], "refine")
            retrained = [one for one in table1 if one["net"] == net and one["method"] == method]
            kinds = (
                (stages[False,], "accuracy", "prune_seconds"),
                (stages[True,], "accuracy", "refine_seconds"),
                (retrained, "retrained_accuracy", "retrain_seconds"),
            )
            rows.append([(mean(each, score), middle(each, spent)) for each, score, spent in kinds])
        best = [max(row[stage][0] for row in rows) for stage in range(3)]
        for method, row in zip(AFTER, rows, strict=True):
            told = [
                f"{bold([value], best[stage], 1)[0]} ({short(spent)})" for stage, (value, spent) in enumerate(row)
            ]
            lines.append([named(net, same) if method == AFTER[0] else "", method, *told])
    return f"{lines_of(lines)}\n\n{origin([*fig2, *table1])}"


def claims(results: Path) -> str:
    """How many of the paper's claims hold."""
    counts = Counter(str(finding.verdict) for finding in judge_claims(gather(results)))
    told = ", ".join(f"{words}: {counts[name]}" for name, words in WORDS.items() if counts[name])
    return f"the {counts.total()} claims of the paper, judged by rules that can fail ({told})"


def named(net: str, records: Sequence[Record]) -> str:
    return f"{net} ({mean(records, 'dense_accuracy'):.1f})"


def mean(records: Sequence[Record], name: str) -> float:
    return statistics.mean(one[name] for one in records)


def middle(records: Sequence[Record], name: str) -> float:
    return statistics.median(one[name] for one in records)


def short(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}"
