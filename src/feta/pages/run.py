"""The page of a pruning run: what was lost and saved, layer by layer, and what to try next."""

import math
from collections.abc import Mapping, Sequence

from feta.pages.advice import CURES, advice
from feta.pages.bars import Bar, columns_of_bars
from feta.pages.document import document, facts, fold, listed, section, table, text
from feta.pages.told import AS_PRUNED, HEADER, UNSEEN, Found, as_pruned, error_of, judged_on, layer_row, measure_of
from feta.pages.words import agreed, amount, counted, percent, significant, smaller, some

SAME = "same answer as the original"
CHARTED = 24  # layers in the chart that is open


def run_page(found: Found) -> str:
    """The page of a run.

    found: PruneReport.to_dict(); and, where they are known, `network` (a name), `accuracy` (of "dense" and "pruned"
        on "test", in percent), `file_bytes` (of the same two) and `typed` (see pages.advice).
    """
    parts = [
        facts(five_numbers(found)),
        *_unseen(found),
        section("What to try next", listed(advice(found))),
        section("Layers", *_chart(found)),
        *_looked_at(found),
        *_left(found),
        *_stages(found),
        section(
            "In numbers",
            fold("Every layer", table(HEADER, map(layer_row, found["layers"]), words=("shape",), whole=("status",))),
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
        return SAME, "–", "no samples were held out to measure it on"
    on, error = f"on {counted(held['samples'], 'held-out sample')}", held["error"]
    if held["agreement"] is not None:
        far = "outputs not finite" if error is None else f"relative error of the outputs {significant(error)}"
        return SAME, agreed(held["samples"], held["agreement"]), f"{on}; {far}"
    return "relative error of the outputs", "–" if error is None else significant(error), on


def _unseen(found: Found) -> list[str]:
    """What to think of an agreement that was measured on a part of the calibration data."""
    said = f"{UNSEEN[0].upper()}{UNSEEN[1:]}."
    return [text(said, note=True)] if found.get("held") and not found.get("accuracy") else []


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
        adds = (
            "multiply-adds for a sample, in prunable layers",
            amount(pair[1]).strip(),
            f"{amount(pair[0]).strip()} before",
        )
    return [
        ("of all parameters are zero", percent(zeros[1]), f"{percent(zeros[0])} before"),
        ("parameters are left", amount(after["nonzeros"]).strip(), f"{amount(before['nonzeros']).strip()} before"),
        (
            "in a file" if found.get("file_bytes") else "as values and bit masks",
            f"{amount(other)}B",
            f"{amount(one)}B before, {smaller(one, other)}",
        ),
        adds,
    ]


def _chart(found: Found) -> list[str]:
    """Error, zeros and share of weights; of many layers those that lost most, the others behind a fold."""
    layers = found["layers"]
    errors = [error for layer in layers if (error := error_of(layer)) is not None]
    note = "The bars of errors and of shares are drawn to the largest of their column."
    if errors:
        since = f", {AS_PRUNED}" if as_pruned(found) else ""
        note = f"Error: of the layer's outputs {judged_on(found)}, relative{since}. {note}"
    whole = _bars(layers, layers, found)
    if len(layers) <= CHARTED:
        return [whole, text(note, note=True)]
    worst = sorted(layers, key=lambda layer: error_of(layer) or 0.0, reverse=True)[:CHARTED]
    said = f"The {CHARTED} layers of {len(layers)} that lost most. {note}"
    return [_bars(worst, layers, found), text(said, note=True), fold(f"All {len(layers)} layers, in order", whole)]


def _bars(shown: Sequence[Found], layers: Sequence[Found], found: Found) -> str:
    total = (found.get("before") or {}).get("parameters") or sum(map(_weights, layers)) or 1
    largest = max(map(_weights, layers), default=1) or 1
    highest = max((error_of(layer) or 0.0 for layer in layers), default=0.0) or 1.0
    rows = []
    for layer in shown:
        error, weights = error_of(layer), _weights(layer)
        bars = [
            Bar(None, "–") if error is None else Bar(error / highest, significant(error)),
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
    shown = table(("layer", "status", "what was found"), rows, words=("what was found",), whole=("status",))
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
    if not found["stages"]:
        return []
    how = any(stage["message"] for stage in found["stages"])
    rows = [
        (
            stage["name"] + (" (kept)" if stage["kept"] else ""),
            "–" if stage["distance"] is None else significant(stage["distance"]),
            f"{stage['seconds']:.1f}",
            *([stage["message"] or "–"] if how else []),
        )
        for stage in found["stages"]
    ]
    by = f" ({measure})" if (measure := measure_of(found)) else ""
    said = f"How far the network's outputs are from the original's{by}, on samples that no stage fitted."
    heads = ("stage", "from the original", "seconds", *(["how"] if how else []))
    return [section("Stages", table(heads, rows, words=("how",)), text(said, note=True))]


def _how(found: Found) -> str:
    """The settings, and where the time went."""
    allocation = (found["allocation"] or {}).get("name", "–")
    rows = [("zeros asked for", _asked(found["target_sparsity"])), ("shared over layers by", allocation)]
    rows += [("seed", found["seed"])]
    rows += [(f"{found['method']}: {name}", _said(value)) for name, value in found["options"].items()]
    rows += [(f"seconds, {name}", f"{seconds:.2f}") for name, seconds in found["parts"].items()]
    rows += [("batch-norms", found["batchnorm"])] if found["batchnorm"] else []
    meaning = text(f"What the settings of {found['method']} do is said by: feta methods --verbose", note=True)
    return fold("Settings and seconds", table(("setting", "value"), rows, words=("value",)), meaning)


def _asked(share: float | Mapping[str, float]) -> str:
    if isinstance(share, Mapping):
        return ", ".join(f"{name} {_asked(one)}" for name, one in share.items())
    return f"{100 * share:g} %"


def _said(value: object) -> str:
    """An option's value, as one says it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "automatic" if value is None else str(value)
