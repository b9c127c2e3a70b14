"""The kinds of records that the page shows: what names their cells, and what each record must hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from feta.errors import FileError

Record = Mapping[str, Any]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


TEXT, NUMBER, WHOLE, FLAG = "a text", "a finite number", "a whole number", "true or false"
LIST, ERRORS, OBJECT = "a list of finite numbers", "finite numbers", "an object"
CHECKS: dict[str, Callable[[Any], bool]] = {
    TEXT: lambda value: isinstance(value, str),
    NUMBER: _is_number,
    WHOLE: lambda value: isinstance(value, int) and not isinstance(value, bool),
    FLAG: lambda value: isinstance(value, bool),
    LIST: lambda value: isinstance(value, list) and bool(value) and all(map(_is_number, value)),
    ERRORS: lambda value: all(
        one is None or _is_number(one) for one in (value if isinstance(value, list) else [value])
    ),
    OBJECT: lambda value: isinstance(value, dict),
}
# What a record may hold, whatever its kind; null is as good as missing.
OPTIONAL = {
    **dict.fromkeys(("accuracy", "dense_accuracy", "retrained_accuracy", "epochs"), NUMBER),
    **dict.fromkeys(("prune_seconds", "refine_seconds", "retrain_seconds"), NUMBER),
    **dict.fromkeys(("intrinsic_dimension", "intrinsic_dimension_maps"), NUMBER),
    "relative_error": ERRORS,
    "refine": FLAG,
    "timed": FLAG,
    "environment": OBJECT,
    "reason": TEXT,
}
WHERE = ("net", "data_name", "device", "refine")


@dataclass(frozen=True)
class Form:
    """What the records of a kind look like.

    always: what a field of every record must be. ran: the same for cells that were run to their end.
    varies: the fields of a key over which the kind's table or figure runs; the others are settings.
    where: cells with the same values here must share one setting.
    """

    always: Mapping[str, str]
    ran: Mapping[str, str]
    varies: tuple[str, ...]
    where: tuple[str, ...] = WHERE

    def split(self, key: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Where a cell belongs, and its setting."""
        setting = {name: key[name] for name in sorted(key) if name not in (*self.varies, *self.where)}
        return [key.get(name) for name in self.where], setting


METHOD = {"net": TEXT, "method": TEXT, "seed": WHOLE, "sparsity": NUMBER}
PRUNED = {"dense_accuracy": NUMBER, "prune_seconds": NUMBER}
RETRAINED = {"retrain_seconds": NUMBER, "retrained_accuracy": NUMBER, "recovered": FLAG}
_LAYER = Form(
    always={"net": TEXT, "layer": TEXT, "depth": WHOLE, "layers": WHOLE, "sparsity": NUMBER},
    ran={"dense_accuracy": NUMBER},
    varies=("seed", "layer", "sparsity"),
)
FORMS: dict[str, Form] = {
    "table1": Form(METHOD, PRUNED | RETRAINED, ("method", "seed", "sparsity")),
    "fig2": Form(METHOD | {"refine": FLAG}, PRUNED, ("method", "seed", "sparsity")),
    "fig3a": _LAYER,
    "fig3b": _LAYER,
    "fig3c": Form(
        always={"k": WHOLE, "network": WHOLE, "sparsity": NUMBER},
        ran={"dense_accuracy": NUMBER},
        varies=("k", "network", "layer", "sparsity"),
        where=(),
    ),
    "bench": Form(
        always=METHOD | {"compensate": FLAG, "floor_seconds": NUMBER, "dense_accuracy": NUMBER},
        ran={"seconds": NUMBER, "relative_error": LIST},
        varies=("method", "seed", "sparsity", "compensate"),
    ),
}


def check(record: Record, where: str) -> None:
    """Raise FileError where a page could not be made of a record; `where` is its file and line."""
    form = FORMS[record["kind"]]
    needed = {**form.always, **({} if record.get("accuracy") is None else form.ran)}
    missing = [name for name in (*needed, "accuracy") if name not in record]
    if missing:
        raise FileError(f"{where}: must have {', '.join(missing)} to be a record of {record['kind']}")
    for name, what in {"key": OBJECT, **OPTIONAL, **needed}.items():
        value = record.get(name)
        if (value is not None or name in (*needed, "key")) and not CHECKS[what](value):
            raise FileError(f"{where}: {name} must be {what}, got {value!r}")
