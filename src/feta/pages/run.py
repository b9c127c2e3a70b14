"""The page of a pruning run: what was lost and saved, layer by layer, and what to try next."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from feta.pages.advice import CURES, advice
from feta.pages.bars import Bar, columns_of_bars
from feta.pages.document import document, facts, fold, listed, section, table, text
from feta.pages.words import amount, counted, percent, some

Found = Mapping[str, Any]
CHARTED = 24  # layers in the chart that is open
COLUMNS = ("layer", "shape", "non-zeros", "zeros", "error", "seconds", "status")


def run_page(found: Found) -> str:
    """The page of a run.

    found: PruneReport.to_dict(); and, where they are known, `network` (a name), `accuracy` (of "dense" and "pruned"
        on "test", in percent) and `file_bytes` (of the same two).
    """
    parts = [
        facts(five_numbers(found)),
        section("What to try next", listed(advice(found))),
        section("Layers", *_chart(found)),
        *_looked_at(found),
        *_left(found),
        *_stages(found),
        section(
            "In numbers",
            fold("Every layer", table(COLUMNS, numbers_of(found), words=("shape", "status"))),
            _how(found),
        ),
    ]
    return document(_title(found), _subtitle(found), *parts)


def five_numbers(found: Found) -> list[tuple[str, str, str]]:
    """Before and after: (label, after, before)."""
    return [_quality(found), *_sizes(found)]


def _title(found: Found) -> str:
    return f"{found['network']}, pruned" if found.get("network") else "A pruned network"


def _subtitle(found: Found) -> str:
    how = f"effort {found['effort']}" if found["effort"] else "alone"
    pattern = f", pattern {found['pattern']}" if found["pattern"] else ""
    share = f"{percent(found['sparsity'])} of the weights of {counted(len(found['layers']), 'layer')}"
    return f"{share} are zero: {found['method']}, {how}{pattern}, {found['seconds']:.1f} s on {found['device']}."


def _quality(found: Found) -> tuple[str, str, str]:
    if accuracy := found.get("accuracy"):
        return "test accuracy", f"{accuracy['pruned']['test']:.2f} %", f"{accuracy['dense']['test']:.2f} % before"
    held = found.get("held")
    if held is None:
        return "accuracy", "–", "no samples were held out to measure it on"
    error = "outputs not finite" if held["error"] is None else f"relative error of the outputs {held['error']:.3g}"
    if held["agreement"] is not None:
        told = f"on {counted(held['samples'], 'sample')}; {error}"
        return "of held-out samples get the same answer", percent(held["agreement"], 1), told
    shown = "–" if held["error"] is None else f"{held['error']:.3g}"
    return "relative error of the outputs", shown, f"on {counted(held['samples'], 'held-out sample')}"


def _sizes(found: Found) -> list[tuple[str, str, str]]:
    before, after = found.get("before"), found.get("after")
    seconds = ("seconds to prune", f"{found['seconds']:.1f}", f"on {found['device']}")
    if not before or not after:
        return [("of the pruned layers' weights are zero", percent(found["sparsity"]), ""), seconds]
    zeros = [1 - size["nonzeros"] / max(size["parameters"], 1) for size in (before, after)]
    one, other = (
        found.get("file_bytes") or {k: s["bytes"] for k, s in (("dense", before), ("pruned", after))}
    ).values()
    adds = seconds
    if before["multiply_adds"] and after["multiply_adds"] is not None:
        pair = before["multiply_adds"], after["multiply_adds"]
        adds = ("multiply-adds for a sample", amount(pair[1]).strip(), f"{amount(pair[0]).strip()} before")
    return [
        ("of all parameters are zero", percent(zeros[1]), f"{percent(zeros[0])} before"),
        ("parameters are left", amount(after["nonzeros"]).strip(), f"{amount(before['nonzeros']).strip()} before"),
        (
            "in a file" if found.get("file_bytes") else "as values and bit masks",
            f"{amount(other)}B",
            f"{amount(one)}B before, {one / max(other, 1):.1f}× smaller",
        ),
        adds,
    ]


def _error(layer: Found) -> float | None:
    """On held-out samples, of the layer as it is or, where the whole network was fitted since, as it was pruned."""
    found: float | None = layer["relative_error"]
    return layer.get("pruned_error") if found is None else found


def _chart(found: Found) -> list[str]:
    """Error, zeros and share of weights; of many layers those that lost most, the others behind a fold."""
    layers = found["layers"]
    errors = [error for layer in layers if (error := _error(layer)) is not None]
    note = "The bars of errors and of shares are drawn to the largest of their column."
    if errors:
        note = f"Error: of the layer's outputs on held-out samples, relative. {note}"
        if any(layer["relative_error"] is None for layer in layers):
            note += " It was measured when the layer was pruned, before the whole network was fitted."
    whole = _bars(layers, layers, found)
    if len(layers) <= CHARTED:
        return [whole, text(note, note=True)]
    worst = sorted(layers, key=lambda layer: _error(layer) or 0.0, reverse=True)[:CHARTED]
    said = f"The {CHARTED} layers of {len(layers)} that lost most. {note}"
    return [_bars(worst, layers, found), text(said, note=True), fold(f"All {len(layers)} layers, in order", whole)]


def _bars(shown: Sequence[Found], layers: Sequence[Found], found: Found) -> str:
    total = (found.get("before") or {}).get("parameters") or sum(map(_weights, layers)) or 1
    largest = max(map(_weights, layers), default=1) or 1
    highest = max((_error(layer) or 0.0 for layer in layers), default=0.0) or 1.0
    rows = []
    for layer in shown:
        error, weights = _error(layer), _weights(layer)
        bars = [
            Bar(None, "–") if error is None else Bar(error / highest, f"{error:.3g}"),
            Bar(layer["sparsity"], percent(layer["sparsity"], 1)),
            Bar(weights / largest, percent(weights / total, 1)),
        ]
        rows.append((layer["name"] or "the layer", bars))
    return columns_of_bars(("layer", "error", "zeros", "of all weights"), rows)


def _weights(layer: Found) -> int:
    return math.prod(layer["shape"])


def _looked_at(found: Found) -> list[str]:
    """Layers that ended otherwise than well, and what helps."""
    bad = [layer for layer in found["layers"] if layer["status"] != "ok"]
    refits = [(name, end) for name, end in found["compensated"].items() if end != "ok"]
    if not bad and not refits:
        return []
    rows = [(layer["name"] or "the layer", layer["status"], layer["message"]) for layer in bad]
    rows += [(name, end, "of its refit, after the layers before it were pruned") for name, end in refits]
    met = dict.fromkeys([*(layer["status"] for layer in bad), *(end for _, end in refits)])
    cures = listed(f"{status}: {CURES[status]}." for status in met if status in CURES)
    shown = table(("layer", "status", "what was found"), rows, words=("status", "what was found"))
    return [section("To be looked at", cures, shown if len(rows) <= CHARTED else fold(f"{len(rows)} layers", shown))]


def _left(found: Found) -> list[str]:
    """What was skipped, by reason."""
    total = (found.get("before") or {}).get("parameters") or 0
    reasons: dict[str, list[Found]] = {}
    for entry in found["skipped"]:
        reasons.setdefault(entry["reason"], []).append(entry)
    rows = []
    for reason, entries in reasons.items():
        weights = sum(entry["weights"] for entry in entries)
        share = percent(weights / total, 1) if total else "–"
        rows.append((some([entry["name"] or entry["kind"] for entry in entries]), reason, f"{weights:,}", share))
    heads = ("left as it is", "because", "weights", "of all parameters")
    return [section("Skipped", table(heads, rows, words=("because",)))] if rows else []


def _stages(found: Found) -> list[str]:
    rows = [
        (
            stage["name"] + (" (kept)" if stage["kept"] else ""),
            "–" if stage["distance"] is None else f"{stage['distance']:.4g}",
            f"{stage['seconds']:.1f}",
            stage["message"],
        )
        for stage in found["stages"]
    ]
    said = text("How far the network's outputs are from the original's, on samples that no stage fitted.", note=True)
    heads = ("stage", "from the original", "seconds", "how")
    return [section("Stages", table(heads, rows, words=("how",)), said)] if rows else []


def numbers_of(found: Found) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for layer in found["layers"]:
        error, shape = _error(layer), "×".join(map(str, layer["shape"]))
        told = "–" if error is None else f"{error:.4f}"
        numbers = (f"{layer['nonzeros']:,}", percent(layer["sparsity"]), told, f"{layer['seconds']:.3f}")
        rows.append((layer["name"] or "the layer", shape, *numbers, layer["status"]))
    return rows


def _how(found: Found) -> str:
    """The settings, and where the time went."""
    allocation = (found["allocation"] or {}).get("name", "–")
    rows = [("asked for", json.dumps(found["target_sparsity"])), ("shares by", allocation), ("seed", found["seed"])]
    rows += [(f"option {name}", json.dumps(value)) for name, value in found["options"].items()]
    rows += [(f"seconds, {name}", f"{seconds:.2f}") for name, seconds in found["parts"].items()]
    rows += [("batch-norms", found["batchnorm"])] if found["batchnorm"] else []
    return fold("Settings and seconds", table(("setting", "value"), rows, words=("value",)))
