"""Methods alone, layer by layer: tables, sentences and the picture of benchmark records; see docs/figures.py."""

import statistics
from collections.abc import Sequence

from origin import origin

from feta_lab.experiments.bench import table
from feta_lab.page.figure import Figure
from feta_lab.page.sections.bench import sparsity_charts
from feta_lab.records import Record, groups
from feta_lab.results.summaries import method_order

CLOSE = 0.05  # points of accuracy that rounding may move
METHODS = ("threshold", "lobs", "sparsegpt", "exact-obs", "alps", "feta")


def lines_of(lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, its first line the heads."""
    head, *rest = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rest))


def bold(values: Sequence[float | None], best: float, digits: int) -> list[str]:
    texts = ["–" if value is None else f"{value:.{digits}f}" for value in values]
    return [f"**{text}**" if value == best else text for text, value in zip(texts, values, strict=True)]


def means(records: Sequence[Record]) -> dict[tuple[str, float], dict[str, float]]:
    """(net, sparsity) -> method -> mean accuracy over the networks of its kind, of methods that refused none."""
    found: dict[tuple[str, float], dict[str, float]] = {}
    for (net, share, method), same in groups(records, "net", "sparsity", "method").items():
        cell = found.setdefault((net, share), {})
        if all(one["accuracy"] is not None for one in same):
            cell[method] = statistics.mean(one["accuracy"] for one in same)
    return found


def markdown(records: Sequence[Record]) -> str:
    """A line for each network: accuracy at each sparsity, by method; the best of a sparsity is bold."""
    found, shares = means(records), sorted({one["sparsity"] for one in records})
    lines = [["network (dense accuracy)", *METHODS]]
    for (net,), same in groups(records, "net").items():
        dense = statistics.mean(one["dense_accuracy"] for one in same)
        columns = [
            bold([found[net, share].get(method) for method in METHODS], max(found[net, share].values()), 1)
            for share in shares
        ]
        lines.append([f"{net} ({dense:.1f})", *(" / ".join(texts) for texts in zip(*columns, strict=True))])
    return f"{lines_of(lines)}\n\n{origin(records)}"


def sentence(records: Sequence[Record]) -> str:
    """In how many cells feta is the most accurate, how far it is behind in the others, and who refused."""
    found = means(records)
    gaps = [max(cell.values()) - cell["feta"] for cell in found.values()]
    behind = [gap for gap in gaps if gap > 0]
    under = f", and at most {max(behind):.2f} points under the best in the other {len(behind)}" if behind else ""
    count = len({one["method"] for one in records})
    others = sorted({one["method"] for one in records} - set(METHODS))
    ran = {(one["method"], one["net"]) for one in records}
    left = sorted({(method, net) for net, _ in found for method in METHODS} - ran)
    refused = sorted({(one["method"], one["net"]) for one in records if one["accuracy"] is None})
    said = "".join(f"; {method} refuses {net}, which would take it too long" for method, net in refused)
    said += "".join(f"; {method} was not run on {net}, where it takes many minutes a layer" for method, net in left)
    return (
        f"Of {count} methods ({' and '.join(others)} beside those of the table) feta is the most accurate in "
        f"{len(gaps) - len(behind)} of the {len(gaps)} cells{under}{said}."
    )


def agreement(records: Sequence[Record], others: Sequence[Record]) -> str:
    """How far apart the same cells are on two machines."""
    here, there = means(records), means([one for one in others if not one["refine"]])
    apart: dict[str, list[float]] = {}
    for place in here.keys() & there.keys():
        for method in here[place].keys() & there[place].keys():
            apart.setdefault(method, []).append(abs(here[place][method] - there[place][method]))
    close = sorted(method for method, far in apart.items() if max(far) <= CLOSE)
    most = max(max(far) for far in apart.values())
    return (
        f"the same networks pruned on a CPU (next section) differ by at most {CLOSE:g} points for "
        f"{', '.join(close)}, and by up to {most:.2f} for the others"
    )


def allocations(records: Sequence[Record]) -> str:
    """A line for each network, sparsity and the mean over networks: test accuracy of feta by allocation."""
    mine = [one for one in records if one["method"] == "feta"]
    names = list(dict.fromkeys(one["allocation"] for one in mine))
    lines = [["network", "sparsity", "dense", *names]]
    for method in ("feta", "alps"):
        same = [one for one in records if one["method"] == method]
        kinds = [*groups(same, "net", "sparsity").items()] if method == "feta" else []
        kinds += [((f"mean, {method}", share), each) for (share,), each in groups(same, "sparsity").items()]
        for (net, share), each in kinds:
            by = {name: [one for one in each if one["allocation"] == name] for name in names}
            values = [statistics.mean(one["accuracy"] for one in by[name]) for name in names]
            dense = statistics.mean(one["dense_accuracy"] for one in each)
            lines.append([str(net), f"{100 * share:g} %", f"{dense:.2f}", *bold(values, max(values), 2)])
    return f"{lines_of(lines)}\n\n{origin(records)}"


def picture(records: Sequence[Record], name: str) -> Figure:
    """Accuracy against sparsity, a panel for each network."""
    rows = [row for row in table(records) if row["method"] in METHODS]
    return Figure(name, sparsity_charts(rows), order=method_order(records))
