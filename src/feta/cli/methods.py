"""feta methods: what there is to prune with."""

import dataclasses
import inspect
from typing import Annotated, Any

from cyclopts import Parameter

from feta.cli.console import out, print_json, print_table
from feta.cli.options import Json


def methods(
    *, verbose: Annotated[bool, Parameter(name=("--verbose", "-v"), negative="")] = False, json: Json = False
) -> None:
    """List the pruning methods.

    Args:
        verbose: Show each method's formula, cost, source, and its options with their defaults.
    """
    from feta.pruners import METHODS

    described: list[dict[str, Any]] = []
    for method in METHODS.values():
        first, _, rest = inspect.cleandoc(method.__doc__ or "").partition("\n")
        options = [
            {"name": field.name.replace("_", "-"), "type": str(field.type), "default": field.default}
            for field in dataclasses.fields(method)
        ]
        details = [line for line in rest.splitlines() if line.strip()]
        described.append({"name": method.name, "summary": first, "details": details, "options": options})
    if json:
        print_json({"methods": described})
    elif not verbose:
        print_table("Methods", ("name", "what it does"), [(entry["name"], entry["summary"]) for entry in described])
    else:
        for entry in described:
            out().print(entry["name"], style="bold", end="  ")
            shown = [f"--{entry['name']}.{o['name']} {o['default']}  ({o['type']})" for o in entry["options"]]
            out().print("\n  ".join([entry["summary"], *entry["details"], *shown]) + "\n")
