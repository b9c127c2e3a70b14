"""Every page and table that is written, with words of one's choice at each place where others' words stand."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from feta.cli.speed_page import speed_page
from feta.files.card import with_pruning
from feta.pages.run import run_page
from feta.report import LayerReport, PruneReport, Skipped
from feta_lab.demo import write_demo
from feta_lab.page.blocks import Facts, Fold, Section, Table, Text
from feta_lab.page.certificate import certificate_page
from feta_lab.page.document import comma_separated, latex, markdown, render
from feta_lab.page.report import build
from feta_lab.page.sections.bench import write_bench
from feta_lab.records import append

Names = Callable[[int], str]  # the words at each place of a page


def everything(names: Names, slow: bool = True) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Everything that is written, by its name, with the places of the words that must be read in it."""
    found = {
        "speed.html": (speed_page(_speed(names)), (0, 1, 2, 3)),
        "blocks.html": (
            render(names(0), names(1), _blocks(names), {names(2): names(3)}, contents=True),
            tuple(range(9)),
        ),
        "card.md": (_card(names), ()),
        "report.txt": (repr(_report(names)), ()),
        "notebook.html": (_report(names)._repr_html_(), (0, 1, 2, 3)),
        "run.html": (run_page(_report(names).to_dict() | {"network": names(4)}), (0, 1, 2, 3, 4)),
    }
    table = _table(names)
    found |= {
        "table.md": (markdown(table), ()),
        "table.csv": (comma_separated(table), ()),
        "table.tex": (latex(table), ()),
    }
    if slow:
        found["certificate.html"] = (certificate_page(_certificate(names)), (0,))
        with tempfile.TemporaryDirectory() as folder:
            found |= _of_records(names, Path(folder))
    return found


def _of_records(names: Names, folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The pages of records, with all files beside them."""
    cells = list(_cells(names))
    for cell in cells:
        append(folder / "results" / "bench" / "records.jsonl", cell)
    build(folder / "results", folder / "report")
    write_bench(folder / "bench", cells)
    write_demo(folder / "demo" / "report.html", _demo(names))
    written = [path for path in folder.rglob("*") if path.suffix in (".html", ".md", ".csv", ".tex", ".svg")]
    return {str(path.relative_to(folder)): (path.read_text(encoding="utf-8"), ()) for path in written}


def _speed(names: Names) -> dict[str, Any]:
    times = {"dense_ms": 2.0, "sparse_ms": 1.0, "threads": 1}
    layer = {"name": names(1), "threads": 1, "sparsity": 0.9, "kind": names(2), "dense_bytes": 9, "bytes": 5}
    layer |= {"dense_ms": {"1": 2.0}, "sparse_ms": {"1": 1.0}}
    about = {
        "network": names(0),
        "device": names(4),
        "file_bytes": 10,
        "notes": [names(3)],
        "teams": [{"threads": 1, "dead_neurons": 2, "joined": 3, "notes": [names(3)]}],
        "batches": [times | {"batch": 1}],
    }
    environment = {"cpu": names(5), "torch": names(6)}
    return about | {"layers": [layer], "memory": {"dense_bytes": 9, "sparse_bytes": 5}, "environment": environment}


def _card(names: Names) -> str:
    pruning = {"method": names(0), "options": {names(1): names(2)}, "layers": []}
    once = with_pruning("# Mine\n\nWords.\n", {names(3): 0.5, "b.weight": 0.25}, {"method": names(0)})
    return with_pruning(once + "\nMore.\n", {names(3): 0.5, names(4) + "2": 0.75}, pruning)


def _report(names: Names) -> PruneReport:
    how: dict[str, Any] = {"status": "poor", "message": names(2)}
    layers = tuple(LayerReport(f"{names(place)}{place}", (3, 4), 6, 0.5, 0.1, 0.2, **how) for place in (0, 1))
    return PruneReport("feta", 0.5, 0.5, 1.0, "cpu", 0, {}, layers, skipped=(Skipped(names(3), "Linear", 5, "why"),))


def _table(names: Names) -> Table:
    rows = ((names(0), names(1), 1.5), (names(2), names(3), 2.5))
    return Table(names(4), (names(5) + "5", names(6) + "6", names(7) + "7"), rows, frozenset({(0, 1)}), name="t")


def _blocks(names: Names) -> list[Any]:
    fold = Fold(names(7), (Facts(((names(8), names(0)),)),))
    return [Section(names(4), (Text(names(5)), _table(names), fold)), Text(names(6))]


def _certificate(names: Names) -> dict[str, Any]:
    form = {
        "radius": [0.1, 0.2],
        "samples": 2,
        "certified_any": 2,
        "certified_but_changed": 0,
        "median_grey_levels": 3.0,
    }
    form |= {
        "changed_beyond": [{"times": 2.0, "samples": 1}],
        "certified_any_in_exact_arithmetic": 2,
        "vacuous": False,
        "one_grey_level": 1,
    }
    form |= {"certified": [{"radius": 0.1, "grey_levels": 3.0, "samples": 2, "share": 1.0}], "median_radius": 0.15}
    counts = {"samples": 2, "agree": 2, "only_dense_right": 0, "only_pruned_right": 0, "accuracy_lost": 0.0}
    limits = {"confidence": 0.99, "agreement_lower_bound": 0.9, "accuracy_lost_upper_bound": 0.01}
    about = {"network": names(0), "data": names(1), "pruning": {"method": names(2), "sparsity": 0.9}, "norm": "l2"}
    about |= {"environment": {names(3): names(4)}, "grey_levels_per_unit": 30.0, "attack": None}
    return {**about, **counts, **limits, "forms": {"local": form}}


def _cells(names: Names) -> Iterator[dict[str, Any]]:
    for place in (0, 1):
        cell = {
            "net": names(2) + "2",
            "method": f"{names(place)}{place}",
            "seed": 0,
            "sparsity": 0.9,
            "compensate": False,
        }
        cell["data"] = names(3)
        ran = {"accuracy": 90.0 + place, "dense_accuracy": 98.0, "seconds": 2.0, "relative_error": [0.1]}
        ran |= {"floor_seconds": 1.0, "timed": True, "device": names(4)}
        yield {"kind": "bench", "key": cell, **cell, **ran, "environment": {"processor": names(5), "torch": names(6)}}


def _demo(names: Names) -> list[dict[str, Any]]:
    layer = {"name": names(2), "shape": [3, 4], "nonzeros": 6, "sparsity": 0.5, "relative_error": 0.1}
    scores = {"dense": {"test": 98.0}, "pruned": {"test": 97.0}}
    metrics = {"accuracy": scores, "seconds": 1.0, "sparsity": 0.9, "layers": [layer]}
    metrics["file_bytes"] = {"dense": 9000, "pruned": 3000}
    config = {"network": names(0), "data": names(1), "sparsity": 0.9}
    methods = ("feta", f"{names(3)}3")
    return [
        {"config": config | {"method": m}, "metrics": metrics, "environment": {"torch": names(4)}} for m in methods
    ]
