"""The model card of a folder: what was pruned, in a section of its README.md that people and programs can read."""

import json
import re
from collections.abc import Mapping
from typing import Any

from feta.errors import printable

BEGIN, END = "<!-- pruning, written by feta -->", "<!-- end of pruning -->"
LONGEST = 4000  # letters of a cell, or of a text in the JSON
# What stands alone, a bar in a word or an ampersand before a space, means nothing.
MARKUP = re.compile(r"[\\`*\[\]<|~$]|&(?=[#\w])|(?<![^\W_])_|_(?![^\W_])")


def in_markdown(text: str) -> str:
    """Somebody else's words in a cell of a Markdown table: nothing in them is markup, ends the cell or hides."""
    return MARKUP.sub(r"\\\g<0>", printable(_ended(text)))


def with_pruning(card: str, shares: Mapping[str, float], pruning: Mapping[str, Any]) -> str:
    """The card with its section on pruning, new or in place of an older one.

    shares: the share of zeros of every tensor that has some.
    pruning: method, target and whatever else is known, ready for JSON.
    """
    known = _ended({key: value for key, value in pruning.items() if key != "layers"})
    rows = [f"| {_name(name)} | {100 * share:.2f} % |" for name, share in shares.items()]
    lines = [BEGIN, "## Pruning", ""]
    if known:
        # No text in it may look like the end of this section.
        told = json.dumps({"pruning": known}, indent=2, sort_keys=True).replace("<", r"\u003c")
        lines += ["```json", told, "```", ""]
    lines += ["| tensor | zeros |", "| --- | --- |", *rows, END]
    # Lines of their own: a name may hold the same words.
    older = re.search(f"^{BEGIN}$.*?^{END}$", card, re.DOTALL | re.MULTILINE)
    before, after = (card[: older.start()], card[older.end() :]) if older else (card, "")
    return "\n".join(filter(None, (before.rstrip("\n") + "\n" if before.strip() else "", *lines))) + (after or "\n")


def _name(name: str) -> str:
    return f"`{name}`" if re.fullmatch(r"[\w.-]{1,200}", name, re.ASCII) else in_markdown(name)


def _ended(value: Any) -> Any:
    """A value ready for JSON in which every text has an end, however long a name somebody has given."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST else value[:LONGEST] + "…"
    if isinstance(value, Mapping):
        return {_ended(key): _ended(held) for key, held in value.items()}
    return [_ended(held) for held in value] if isinstance(value, list | tuple) else value
