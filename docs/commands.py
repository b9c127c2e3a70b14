"""The text of commands.md, from the commands' own help; docs/reference.py writes it."""

import inspect
import typing
from typing import Any

from feta.cli import app

HEAD = """# Commands

Made from the commands' own help by `docs/reference.py`; `feta COMMAND --help` shows the same. Every option can also
be set by the environment (`FETA_PRUNE_SPARSITY=0.95`) or in a `feta.toml` (`[prune]`, `sparsity = "0.95"`)."""
TYPES = {
    "str": "text",
    "int": "number",
    "float": "number",
    "bool": "",
    "Path": "path",
    "list": "texts",
    "dict": "options",
}


def commands() -> str:
    texts = [HEAD]
    for name in sorted(name for name in app if not name.startswith("-")):
        inner = [other for other in app[name] if not other.startswith("-")]
        texts += [command(app[name][other], f"{name} {other}") for other in inner]
        texts += [] if inner else [command(app[name], name)]
    return "\n\n".join(texts) + "\n"


def command(one: Any, name: str) -> str:
    """Its line of help, and a table for each group of options."""
    parts, last = [f"## feta {name}", one.help.partition("\n\n")[0].strip()], None
    for option in shown(one):
        group = option.parameter.group[0]
        if group.name != last:
            titled = [] if group.name in ("Arguments", "Parameters") else [f"**{group.name}.** {group.help}".strip()]
            if titled or last is None:
                parts += [*titled, "| | type | default | |\n| --- | --- | --- | --- |"]
            last = group.name
        parts[-1] += f"\n{row(option)}"
    return "\n\n".join(parts)


def shown(one: Any) -> list[Any]:
    """Its options, but for the groups that they are bound together in."""
    return [option for option in one.assemble_argument_collection(parse_docstring=True) if option.show]


def row(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in option.names)
    meaning = " ".join((option.parameter.help or "").split()).replace("|", "\\|")
    return f"| {names} | {kind(option)} | {default(option)} | {meaning} |"


def kind(option: Any) -> str:
    if choices := option.get_choices():
        return ", ".join(f"`{choice}`" for choice in choices)
    several = [one for one in typing.get_args(option.hint) if one is not type(None)]
    plain = several[0] if type(None) in typing.get_args(option.hint) else option.hint
    name = getattr(typing.get_origin(plain) or plain, "__name__", "")
    return TYPES[name]


def default(option: Any) -> str:
    value = option.field_info.default
    if option.required:
        return "required"
    if value is True:
        return "on"
    return "" if value is None or value is False or value is inspect.Parameter.empty else f"`{value}`"
