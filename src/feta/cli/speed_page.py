"""The page of `feta speed`: one HTML file with a chart, light and dark, that needs nothing else."""

import html
from collections.abc import Mapping
from typing import Any

from feta.cli.console import size
from feta.errors import printable

STYLE = """h1{overflow-wrap:anywhere}

:root { color-scheme: light dark; --text: #1c1e21; --soft: #666c75; --back: #fff; --line: #d9dce1;
  --dense: #a7adb8; --sparse: #1769aa; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --soft: #9aa1ab; --back: #16181c; --line: #363a42;
  --dense: #6d7480; --sparse: #5aa9e6; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
p { color: var(--soft); } svg { width: 100%; height: auto; } svg text { fill: var(--text); font-size: 13px; }
.dense { fill: var(--dense); } .sparse { fill: var(--sparse); } svg .soft { fill: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { text-align: right; padding: 0.3rem 0.6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } .scroll { overflow-x: auto; }
"""
COLUMNS = ("layer", "threads", "zeros", "form", "batch", "ms dense", "ms sparse", "memory dense", "memory")
LEFT, WIDTH, ROW, BAR = 150, 800, 56, 18
LONGEST = 1000  # letters of a name


def speed_page(found: Mapping[str, Any]) -> str:
    """The page as a function of the JSON object alone."""
    name, memory, place = escape(found["network"]), found["memory"], found["environment"]
    dense, sparse = memory["dense_bytes"], memory["sparse_bytes"]
    facts = f"In memory {size(dense)} dense, {size(sparse)} sparse; in a file {size(found['file_bytes'])}."
    machine = f"{place['cpu']}, {found['device']}, torch {place['torch']}; each the least of at least seven turns."
    notes = "".join(f"<p>{escape(note)}</p>" for note in found["notes"])
    whole = [
        (row["batch"], row["threads"], f"{row['dense_ms']:.3f}", f"{row['sparse_ms']:.3f}", gain(row))
        for row in found["batches"]
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>feta speed: {name}</title><style>{STYLE}</style></head><body>
<h1>{name}</h1>
<p>{facts}<br>{escape(machine)}</p>{notes}
<h2>The whole network</h2>
{_chart(found)}
{_table(("batch", "threads", "ms dense", "ms sparse", "faster by"), whole)}
<h2>Layers</h2>
{_table(COLUMNS, _rows(found))}
</body></html>
"""


def escape(text: str) -> str:
    """Somebody else's words: no markup, nothing that hides or turns the rest around, and no end of letters."""
    return html.escape(printable(text if len(text) <= LONGEST else text[:LONGEST] + "…"))


def gain(row: Mapping[str, Any]) -> str:
    return f"{row['dense_ms'] / row['sparse_ms']:.2f}×"


def _chart(found: Mapping[str, Any]) -> str:
    """Two bars for each batch size, in percent of the dense time: times of one and of 256 samples differ too much."""
    room, parts = WIDTH - LEFT - 160, []
    for index, row in enumerate(found["batches"]):
        top, most = ROW * index, max(row["dense_ms"], row["sparse_ms"])
        label = f"batch {row['batch']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"
        parts.append(f'<text x="{LEFT - 10}" y="{top + BAR + 5}" text-anchor="end">{label}</text>')
        for place, kind in enumerate(("dense", "sparse")):
            ms, y = row[f"{kind}_ms"], top + place * (BAR + 2)
            width = room * ms / most
            said = f"{ms:.3g} ms {kind}" + (f", {gain(row)}" if kind == "sparse" else "")
            parts.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>')
            parts.append(f'<text class="soft" x="{LEFT + width + 8:.1f}" y="{y + BAR - 4}">{said}</text>')
    height = ROW * len(found["batches"])
    label = "Milliseconds of the dense and of the sparse network"
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _rows(found: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    rows = []
    for layer in found["layers"]:
        zeros = f"{100 * layer['sparsity']:.2f} %"
        for batch, ms in layer["dense_ms"].items() or [("–", None)]:
            times = ("–", "–") if ms is None else (f"{ms:.4f}", f"{layer['sparse_ms'][batch]:.4f}")
            about = (layer["name"] or "the layer", layer["threads"], zeros, layer["kind"], batch)
            rows.append((*about, *times, size(layer["dense_bytes"]), size(layer["bytes"])))
    return rows


def _table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
