"""The page of `feta speed`: a function of its JSON object alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from feta.cli.console import size
from feta.pages.bars import Bar, paired_bars
from feta.pages.document import document, section, table, text
from feta.pages.words import counted

WHOLE = ("batch", "threads", "ms dense", "ms sparse", "faster by")
COLUMNS = ("layer", "threads", "zeros", "form", "batch", "ms dense", "ms sparse", "memory dense", "memory")


def speed_page(found: Mapping[str, Any]) -> str:
    """One HTML file with a chart, light and dark, that needs nothing else."""
    memory, place = found["memory"], found["environment"]
    dense, sparse = memory["dense_bytes"], memory["sparse_bytes"]
    first = found["batches"][0]
    facts = (
        f"{_gain(first)} the speed of the dense network at batch {first['batch']}; in memory {size(dense)} dense, "
    )
    facts += f"{size(sparse)} sparse; in a file {size(found['file_bytes'])}."
    machine = f"{place['cpu']}, {found['device']}, torch {place['torch']}; each the least of at least seven turns."
    notes = text(machine, *changes_said(found), *found["notes"], note=True)
    return document(
        found["network"],
        facts,
        notes,
        section("The whole network", paired_bars(map(_pair, found["batches"])), table(WHOLE, whole_rows(found))),
        section(f"Layers: {forms_said(found['teams'])}", table(COLUMNS, _rows(found), words=("form",))),
    )


def whole_rows(found: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The whole network at each batch, under WHOLE."""
    return [
        (row["batch"], row["threads"], f"{row['dense_ms']:.3f}", f"{row['sparse_ms']:.3f}", _gain(row))
        for row in found["batches"]
    ]


def forms_said(teams: Sequence[Mapping[str, Any]]) -> str:
    """What a table of layers shows that were timed with these numbers of threads."""
    dense = [team for team in teams if any(note.startswith("the dense layers stay") for note in team["notes"])]
    with_ = (
        ""
        if len(dense) == len(teams)
        else f" with {' and '.join(counted(team['threads'], 'thread') for team in dense)}"
    )
    return "dense → the fastest form" + f", by itself; the dense layers stay{with_}" * bool(dense)


def changes_said(found: Mapping[str, Any]) -> list[str]:
    """What was done to the network beside the forms of single layers, whose times do not show it."""
    lines = []
    for team in found["teams"]:
        which = f"with {counted(team['threads'], 'thread')} " if len(found["teams"]) > 1 else ""
        if team["dead_neurons"]:
            lines.append(f"{which}{counted(team['dead_neurons'], 'neuron')} without effect taken out first")
        if team["joined"]:
            lines.append(f"{which}{team['joined']} neighbouring modules run in one call: no single layer shows that")
    return lines


def _gain(row: Mapping[str, Any]) -> str:
    return f"{row['dense_ms'] / row['sparse_ms']:.2f}×"


def _pair(row: Mapping[str, Any]) -> tuple[str, list[Bar]]:
    """Two bars, drawn to the longer: times of one and of 256 samples differ too much for one scale."""
    most = max(row["dense_ms"], row["sparse_ms"])
    label = f"batch {row['batch']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"
    dense = Bar(row["dense_ms"] / most, f"{row['dense_ms']:.3g} ms dense", "two")
    return label, [dense, Bar(row["sparse_ms"] / most, f"{row['sparse_ms']:.3g} ms sparse, {_gain(row)}")]


def _rows(found: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    rows = []
    for layer in found["layers"]:
        zeros = f"{100 * layer['sparsity']:.2f} %"
        for batch, ms in layer["dense_ms"].items() or [("–", None)]:
            times = ("–", "–") if ms is None else (f"{ms:.4f}", f"{layer['sparse_ms'][batch]:.4f}")
            about = (layer["name"] or "the layer", layer["threads"], zeros, layer["kind"], batch)
            rows.append((*about, *times, size(layer["dense_bytes"]), size(layer["bytes"])))
    return rows
