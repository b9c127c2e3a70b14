"""feta methods: what there is to prune with."""

from __future__ import annotations

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

    Parameters
    ----------
    verbose
        With formula, options and their defaults, cost and source.
    """
    from feta.pruners import METHODS

    described = [describe(method) for method in METHODS.values()]
    if json:
        print_json({"methods": described})
        return
    if not verbose:
        rows = [(entry["name"], entry["summary"]) for entry in described]
        print_table("Methods", ("name", "what it does"), rows)
        return
    console = out()
    for entry in described:
        console.print(entry["name"], style="bold", end="  ")
        console.print(entry["summary"])
        for line in entry["details"]:
            console.print(f"  {line}")
        for option in entry["options"]:
            console.print(f"  --{entry['name']}.{option['name']} {option['default']}  ({option['type']})")
        console.print()


def describe(method: type[Any]) -> dict[str, Any]:
    """A method's docstring and options as data."""
    first, _, rest = inspect.cleandoc(method.__doc__ or "").partition("\n")
    options = [
        {"name": field.name.replace("_", "-"), "type": str(field.type), "default": field.default}
        for field in dataclasses.fields(method)
    ]
    details = [line for line in rest.splitlines() if line.strip()]
    return {"name": method.name, "summary": first, "details": details, "options": options}
