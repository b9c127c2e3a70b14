"""Writes api.md from docstrings and commands.md from the commands' help: python docs/reference.py

A test fails where a page is not what the source says today, and where a parameter of a function has no meaning.
"""

import ast
import enum
import importlib
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from commands import commands

FOLDER = Path(__file__).parent
PLACES = {  # section -> what it says, and the names it shows
    "Pruning": (
        "",
        "feta.prune feta.smart_prune feta.Settings feta.PruneResult feta.report.PruneReport feta.report.LayerReport "
        "feta.report.Size feta.report.Skipped feta.report.AllocationReport feta.report.StageReport "
        "feta.engine.settings.PruneEvent feta.PruneWarning",
    ),
    "Smaller networks": (
        "See [smaller networks](structured.md).",
        "feta.shrink feta.ShrinkResult feta.structured.report.ShrinkReport feta.files.low_rank.low_rank",
    ),
    "Refining and retraining": (
        "See [refining and retraining](retraining.md).",
        "feta.refine feta.Refinement feta.tuning.refine.RefineResult feta.report.RefineReport feta.retrain "
        "feta.Retraining feta.tuning.retrain.RetrainResult feta.report.RetrainReport feta.masks_of feta.hold_zeros",
    ),
    "Files and other forms": (
        "See [files](files.md) and [exporting](export.md).",
        "feta.save feta.load feta.load_into feta.files.network.Network feta.files.exports.export "
        "feta.masks.torch_masks",
    ),
    "Inference": ("See [deployment](deployment.md).", "feta.sparsify"),
    "Methods of your own": (
        "See [adding a method](own_method.md). Those that are there are classes of `feta.pruners`, ways to spread a "
        "budget of `feta.allocation`; [methods](methods.md) has their options.",
        "feta.Pruner feta.Needs feta.LayerProblem feta.LayerSolution feta.Sparsity feta.Activation feta.Status",
    ),
    "Certificates and bounds": (
        "What is proven, and under which conditions: [certificates](certificates.md), [bounds](bounds.md).",
        "feta.certify feta.certificates.certificate.Certificate feta.certificates.attack.Attack "
        "feta.theory.bounds.generalisation_bounds feta.theory.bounds.BoundsReport feta.theory.robustness.Manifold "
        "feta.theory.dimension.intrinsic_dimension feta.theory.dimension.Dimension",
    ),
    "Errors": ("", "feta.FetaError feta.ConfigError feta.DataError feta.FileError feta.ModelError"),
}
API = """# Python reference

Made from the docstrings by `docs/reference.py`. The names of `feta` itself are what most people need; those of other
modules are what these return or take. What is not on this page may change.
"""
Written = tuple[str, str, str, int]  # name, type, default, and the line that a comment may stand on


class Parameter(NamedTuple):
    name: str
    type: str
    default: str
    meaning: str


def found(place: str) -> Any:
    home, _, name = place.rpartition(".")
    return getattr(importlib.import_module(home), name)


def tree_of(thing: Any) -> Any:
    """The definition of a function or class, as it is written."""
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def sections(text: str) -> tuple[list[str], dict[str, str]]:
    """A docstring's paragraphs of prose and code, and the meaning of every name in `name, other: meaning`."""
    prose, meanings = [], {}
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        joined = re.sub(r"\n    +(?=\S)", " ", paragraph)  # a meaning in one line
        lines = [re.match(r"((?:\w+, )*\w+): (.*)", line) for line in joined.split("\n")]
        if paragraph.startswith(" ") and prose and prose[-1].startswith(" "):
            prose[-1] += f"\n\n{paragraph}"  # the same example goes on
        elif paragraph.startswith((" ", ">>>", "Example::")) or not all(lines):
            prose.append(paragraph)
        else:
            meanings |= {name: line[2] for line in lines if line for name in line[1].split(", ")}
    return prose, meanings


def shown(paragraph: str) -> str:
    """Prose as it is, indented paragraphs and prompts as code."""
    paragraph = paragraph.removeprefix("Example::").strip("\n")
    if not paragraph:
        return ""
    if paragraph.startswith((" ", ">>>")):
        return f"```python\n{textwrap.dedent(paragraph).replace('>>> ', '')}\n```"
    return paragraph


def parameters(thing: Any) -> list[Parameter]:
    """Of a function its parameters, of a class its fields; meanings are the docstring's, else the line's comment."""
    tree, (_, meanings) = tree_of(thing), sections(thing.__doc__ or "")
    lines = textwrap.dedent(inspect.getsource(thing)).split("\n")
    names = vars(inspect.getmodule(thing))
    return [
        Parameter(
            name, kind_of(kind, names), default, meanings.get(name) or comment_of(lines[line - 1], lines[line - 2])
        )
        for name, kind, default, line in (members if inspect.isclass(thing) else arguments)(tree, thing)
    ]


def arguments(tree: ast.FunctionDef, thing: Any) -> Iterator[Written]:
    given = inspect.signature(thing).parameters
    for one in [*tree.args.args, *tree.args.kwonlyargs]:
        yield one.arg, unparsed(one.annotation), value_of(given[one.arg].default), one.lineno


def members(tree: ast.ClassDef, thing: type) -> Iterator[Written]:
    """Fields of a dataclass or a tuple, values of an enumeration."""
    given = {} if issubclass(thing, enum.Enum | Exception) else inspect.signature(thing).parameters
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in given:
            name = node.target.id
            yield name, unparsed(node.annotation), value_of(given[name].default), node.end_lineno or node.lineno
        elif issubclass(thing, enum.Enum) and isinstance(node, ast.Assign):
            yield unparsed(node.targets[0]), "", unparsed(node.value), node.lineno


def unparsed(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node).replace("'", '"')


def value_of(default: Any) -> str:
    """As it is written; of dataclasses whose fields are made anew, what is made."""
    if default is inspect.Parameter.empty:
        return ""
    if isinstance(default, enum.Enum):
        return f'"{default.value}"'
    made = "{}" if "factory" in repr(default) else repr(default)
    return re.sub(r"\(.*\)", "()", made) if made[:1].isupper() else made.replace("'", '"')


def kind_of(text: str, names: dict[str, Any]) -> str:
    """A type with the choices and unions that a name of the module stands for written out."""

    def spelt(found: re.Match[str]) -> str:
        choices = typing.get_args(names.get(found[0])) if typing.get_origin(names.get(found[0])) is Literal else ()
        return " | ".join(f'"{choice}"' for choice in choices) or found[0]

    text = re.sub(r"\bSparsityRequest\b", "float | Mapping[str, float]", text)
    text = re.sub(r"\w+", spelt, text) if '"' not in text else text
    return re.sub(r"Literal\[([^]]*)\]", lambda found: found[1].replace(", ", " | "), text)


def comment_of(line: str, above: str) -> str:
    """Behind it, or on a line of its own above it."""
    return line.partition("  # ")[2] or (above.strip()[2:] if above.strip().startswith("# ") else "")


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def code(text: str) -> str:
    return f"`{cell(text)}`" if text else ""


def table(rows: list[Parameter], head: str) -> str:
    lines = [f"| {head} | type | default | |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *(f"| `{n}` | {code(t)} | {code(d)} | {cell(m)} |" for n, t, d, m in rows)])


def entry(place: str) -> str:
    """Heading, how it is called, what it says, and its parameters."""
    thing = found(place)
    prose, _ = sections(thing.__doc__ or "")
    parts, rows = [f"### {place.rpartition('.')[2]}", f"`{place}`"], parameters(thing)
    texts = [shown(paragraph) for paragraph in prose]
    raised = [text for text in texts if text.startswith(("Returns", "Raises"))]
    parts += [text for text in texts if text and text not in raised]
    if rows:
        parts.append(table(rows, "parameter" if inspect.isfunction(thing) else "field"))
    if inspect.isclass(thing):
        parts += [text for text in [methods(thing)] if text]
    return "\n\n".join([*parts, *raised])


def methods(thing: type) -> str:
    """A line for each public method that has something to say."""
    own = [(name, value) for name, value in vars(thing).items() if inspect.isfunction(value) and name[0] != "_"]
    said = [(f"{name}{signature(value)}", inspect.cleandoc(value.__doc__)) for name, value in own if value.__doc__]
    return "\n".join(f"- `{call}`: {text.partition(chr(10) * 2)[0].replace(chr(10), ' ')}" for call, text in said)


def signature(function: Any) -> str:
    names = [one.arg for one in tree_of(function).args.args if one.arg != "self"]
    return f"({', '.join(names)})"


def api() -> str:
    parts = [API]
    for title, (said, places) in PLACES.items():
        parts += [f"## {title}", *([said] if said else []), *map(entry, places.split())]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


PAGES = {"api.md": api, "commands.md": commands}

if __name__ == "__main__":
    for name, made in PAGES.items():
        (FOLDER / name).write_text(made(), encoding="utf-8")
