"""Kinds of records: by which fields each is known, what names its cells, and what a record must hold.

A cell is what a mean is taken over, so its settings are told apart from what names it: cells of two settings are
never averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from feta.errors import FileError
from feta_lab.page.blocks import is_number

Record = Mapping[str, Any]
Kind = Literal["table1", "fig2", "fig3a", "fig3b", "fig3c", "bench"]
Fields = tuple[str, ...]


def _errors(value: object) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(part is None or is_number(part) for part in parts)


TEXT, NUMBER, WHOLE, FLAG = "a text", "a finite number", "a whole number", "true or false"
LIST, ERRORS, OBJECT, PLAIN = "a list of finite numbers", "finite numbers", "an object", "a single value"
CHECKS: dict[str, Callable[[Any], bool]] = {
    TEXT: lambda value: isinstance(value, str),
    NUMBER: is_number,
    WHOLE: lambda value: isinstance(value, int) and not isinstance(value, bool),
    FLAG: lambda value: isinstance(value, bool),
    LIST: lambda value: isinstance(value, list) and bool(value) and all(map(is_number, value)),
    ERRORS: _errors,
    OBJECT: lambda value: isinstance(value, dict),
    PLAIN: lambda value: not isinstance(value, dict | list),
}
# What a record may hold, whatever its kind; null is as good as missing.
OPTIONAL = {
    "accuracy": NUMBER,
    "dense_accuracy": NUMBER,
    "prune_seconds": NUMBER,
    "refine_seconds": NUMBER,
    "retrain_seconds": NUMBER,
    "retrained_accuracy": NUMBER,
    "epochs": NUMBER,
    "relative_error": ERRORS,
    "intrinsic_dimension": NUMBER,
    "intrinsic_dimension_maps": NUMBER,
    "timed": FLAG,
    "environment": OBJECT,
    "reason": TEXT,
}


@dataclass(frozen=True)
class Form:
    """What the records of a kind look like.

    settings: (fields, settings) in steps: cells with the same values under `fields` must share one setting.
    """

    signs: Fields  # together in no other kind's records
    cell: Fields
    settings: tuple[tuple[Fields, Fields], ...]
    always: Mapping[str, str]  # field -> what it must be
    ran: Mapping[str, str]  # and where the cell was run to its end
    defaults: Mapping[str, str] = field(default_factory=dict)  # of records from before there was a choice

    @property
    def identity(self) -> Fields:
        """What tells a cell from all others, settings included."""
        return (*self.cell, *(name for _, fields in self.settings for name in fields))


WHERE = ("net", "data_name", "device")
RETRAINING = ("samples", "max_epochs", "patience", "tolerance", "learning_rate", "decay", "batch_size")
METHOD = {"net": TEXT, "method": TEXT, "seed": WHOLE, "sparsity": NUMBER}
LAYER = Form(
    signs=("layer", "depth"),
    cell=(*WHERE, "seed", "layer", "sparsity"),
    settings=((WHERE, ("samples", "epochs")),),
    always={"net": TEXT, "layer": TEXT, "depth": WHOLE, "layers": WHOLE, "sparsity": NUMBER},
    ran={"dense_accuracy": NUMBER},
)
FORMS: dict[Kind, Form] = {
    "table1": Form(
        signs=("max_epochs", "tolerance"),
        cell=(*WHERE, "method", "seed", "sparsity"),
        settings=((WHERE, RETRAINING),),
        always=METHOD,
        ran={
            "dense_accuracy": NUMBER,
            "prune_seconds": NUMBER,
            "retrain_seconds": NUMBER,
            "retrained_accuracy": NUMBER,
            "recovered": FLAG,
        },
    ),
    "fig2": Form(
        signs=("refine",),
        cell=(*WHERE, "method", "seed", "sparsity", "refine"),
        settings=((WHERE, ("samples",)), ((*WHERE, "refine"), ("passes",))),
        always=METHOD | {"refine": FLAG},
        ran={"dense_accuracy": NUMBER, "prune_seconds": NUMBER},
    ),
    "fig3a": LAYER,
    "fig3b": LAYER,
    "fig3c": Form(
        signs=("k", "network"),
        cell=("k", "network", "layer", "sparsity"),
        settings=(((), (*WHERE, "epochs", "batch_size", "learning_rate", "rows")),),
        always={"k": WHOLE, "network": WHOLE, "sparsity": NUMBER},
        ran={"dense_accuracy": NUMBER},
    ),
    "bench": Form(
        signs=("compensate", "floor_seconds"),
        cell=(*WHERE, "method", "seed", "sparsity", "compensate"),
        settings=((WHERE, ("samples", "allocation")),),
        always=METHOD | {"compensate": FLAG, "floor_seconds": NUMBER, "dense_accuracy": NUMBER},
        ran={"seconds": NUMBER, "relative_error": LIST},
        defaults={"allocation": "uniform"},
    ),
}


def named(folder: str) -> Kind | None:
    """The experiment a folder is named after: table1, table1-gpu."""
    return next((kind for kind in FORMS if folder == kind or folder.startswith(f"{kind}-")), None)


def kind_of(record: Record, folder: str) -> Kind | None:
    """By its fields, and where they do not tell by its folder's name."""
    by_name = named(folder)
    fitting = [kind for kind, form in FORMS.items() if all(sign in record for sign in form.signs)]
    return by_name if by_name in fitting or not fitting else fitting[0]


def check(record: Record, kind: Kind, where: str) -> None:
    """Fail where a page could not be made of a record; `where` is its file and line."""
    form = FORMS[kind]
    needed = {**form.always, **({} if record.get("accuracy") is None else form.ran)}
    missing = [name for name in (*needed, "accuracy") if name not in record]
    if missing:
        raise FileError(f"{where}: must have {', '.join(missing)} to be a record of {kind}")
    for name, what in {**dict.fromkeys(form.identity, PLAIN), **OPTIONAL, **needed}.items():
        value = record.get(name)
        if (value is not None or name in needed) and not CHECKS[what](value):
            raise FileError(f"{where}: {name} must be {what}, got {value!r}")
