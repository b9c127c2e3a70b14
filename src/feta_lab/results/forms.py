"""The kinds of records that the page shows: what names their cells, and what each record must hold."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from feta.errors import FileError
from feta.files.plain import shortened
from feta_lab.records import Record


def is_number(value: object) -> bool:
    """Whether the value is a finite number; None, NaN, infinities and booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _values(value: Any) -> list[Any]:
    """Of layers in order or by name, or of one."""
    return [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [value]


CHECKS: dict[str, Callable[[Any], bool]] = {
    "a text": lambda value: isinstance(value, str),
    "a finite number": is_number,
    "a whole number": lambda value: type(value) is int,
    "true or false": lambda value: isinstance(value, bool),
    "finite numbers": lambda value: all(v is None or is_number(v) for v in _values(value)),
    "an object": lambda value: isinstance(value, dict),
}
# What a field must be, whatever the kind of its record; where it is not needed, null is as good as missing.
FIELDS = {
    "a text": "net method recipe layer reason",
    "a finite number": "sparsity accuracy dense_accuracy retrained_accuracy epochs seconds floor_seconds "
    "prune_seconds refine_seconds retrain_seconds intrinsic_dimension intrinsic_dimension_maps",
    "a whole number": "seed depth layers k network",
    "true or false": "refine compensate recovered timed",
    "finite numbers": "relative_error",
    "an object": "key environment",
}
TYPES = {name: what for what, names in FIELDS.items() for name in names.split()}


@dataclass(frozen=True)
class Form:
    """What the records of a kind look like.

    always: the fields that every record must have. ran: those of cells that were run to their end.
    varies: the fields of a key over which the kind's table or figure runs; the others are settings.
    where: cells with the same values here must share one setting.
    """

    always: str
    ran: str
    varies: tuple[str, ...] = ("method", "seed", "sparsity")
    where: tuple[str, ...] = ("net", "data_name", "device", "refine")

    def split(self, key: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Where a cell belongs, and its setting."""
        setting = {name: key[name] for name in sorted(key) if name not in (*self.varies, *self.where)}
        return [key.get(name) for name in self.where], setting


METHOD, PRUNED = "net method seed sparsity", "dense_accuracy prune_seconds"
CELL = ("method", "seed", "sparsity", "compensate")
LAYER = Form("net layer depth layers sparsity", "dense_accuracy", ("seed", "layer", "sparsity"))
FORMS: dict[str, Form] = {
    "table1": Form(METHOD, f"{PRUNED} retrain_seconds retrained_accuracy recovered"),
    "fig2": Form(f"{METHOD} refine", PRUNED),
    "fig3a": LAYER,
    "fig3b": LAYER,
    "fig3c": Form("k network sparsity", "dense_accuracy", ("k", "network", "layer", "sparsity"), where=()),
    "recipes": Form(
        "net recipe rows seed sparsity", "dense_accuracy seconds", ("recipe", "rows", "seed", "sparsity")
    ),
    "bench": Form(f"{METHOD} compensate floor_seconds dense_accuracy", "seconds relative_error", CELL),
}


def known(record: Record) -> bool:
    """Whether the page shows records of this kind; a kind may be anything, where another program wrote the file."""
    kind = record.get("kind")
    return isinstance(kind, str) and kind in FORMS


def check(record: Record, where: str) -> None:
    """Raise FileError where a page could not be made of a record; `where` is its file and line."""
    form = FORMS[record["kind"]]
    needed = ["key", *form.always.split(), *(form.ran.split() if record.get("accuracy") is not None else ())]
    missing = [name for name in (*needed, "accuracy") if name not in record]
    if missing:
        raise FileError(f"{where}: must have {', '.join(missing)} to be a record of {record['kind']}")
    for name, what in TYPES.items():
        value = record.get(name)
        # The layers of a benchmark are patterns, those of Figure 3 a count.
        if (name in needed or (value is not None and name != "layers")) and not CHECKS[what](value):
            raise FileError(f"{where}: {name} must be {what}, got {shortened(value)}")
