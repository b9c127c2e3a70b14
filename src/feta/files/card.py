"""The model card of a folder: what was pruned, in a section of its README.md that people and programs can read."""

import json
from collections.abc import Mapping
from typing import Any

BEGIN, END = "<!-- pruning, written by feta -->", "<!-- end of pruning -->"


def with_pruning(card: str, shares: Mapping[str, float], pruning: Mapping[str, Any]) -> str:
    """The card with its section on pruning, new or in place of an older one.

    shares: the share of zeros of every tensor that has some.
    pruning: method, target and whatever else is known, ready for JSON.
    """
    known = {key: value for key, value in pruning.items() if key != "layers"}
    rows = [f"| `{name}` | {100 * share:.2f} % |" for name, share in shares.items()]
    lines = [BEGIN, "## Pruning", ""]
    if known:
        lines += ["```json", json.dumps({"pruning": known}, indent=2, sort_keys=True), "```", ""]
    lines += ["| tensor | zeros |", "| --- | --- |", *rows, END]
    before, _, rest = card.partition(BEGIN)
    after = rest.partition(END)[2]
    return "\n".join(filter(None, (before.rstrip("\n") + "\n" if before.strip() else "", *lines))) + (after or "\n")
