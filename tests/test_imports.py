"""Imports go one way, the core stays light, and the public names are the ones that are listed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import feta

ROOT = Path(feta.__file__).parent
# A module imports from its own row and from those above; what is not listed belongs to the row of the engine.
ROWS = (
    ("errors",),
    ("objective",),
    ("layers", "sparsity", "problem"),
    ("calibration",),
    ("solvers",),
    ("pruners", "allocation"),
    ("selection", "report", "engine", "pruning", "masks", "tuning", "export", "bounds"),
    ("lab",),
    ("cli",),
    ("__main__",),
)
ROW_OF = {room: row for row, rooms in enumerate(ROWS) for room in rooms}
ENGINE = ROW_OF["engine"]
CORE_NEEDS = {"torch", "numpy", "scipy", "safetensors"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
INNER = sorted(name for name in MODULES if name != "feta")


def imports_of(name: str) -> Iterator[str]:
    """Full names of everything a module imports, also inside functions."""
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} must import by full names, got a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else str(node.module)


def row_of(name: str) -> int:
    return ROW_OF.get(name.split(".")[1], ENGINE)


def ours(name: str) -> set[str]:
    return {target for target in imports_of(name) if target.split(".")[0] == "feta"}


@pytest.mark.parametrize("name", INNER)
def test_imports_go_one_way(name):
    for target in ours(name):
        if target == "feta":
            assert row_of(name) >= ROW_OF["cli"], (
                f"{name} must import from modules, not from the package's front"
            )
        else:
            assert row_of(target) <= row_of(name), f"{name} must not import {target}"


def test_there_are_no_cycles():
    graph = {name: ours(name) - {"feta"} for name in INNER}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"modules import each other: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("name", [name for name in INNER if name.startswith("feta.pruners.")])
def test_no_pruner_imports_another(name):
    assert {target for target in ours(name) if target.startswith("feta.pruners")} == set()


@pytest.mark.parametrize("name", [name for name in INNER if row_of(name) < ROW_OF["lab"]])
def test_the_core_needs_little(name):
    foreign = {target.split(".")[0] for target in imports_of(name)} - {"feta"} - sys.stdlib_module_names
    assert foreign <= CORE_NEEDS


def test_the_rule_sees_what_is_there():
    """Guards the tests above: they must look at real files and real imports."""
    assert {"feta.errors", "feta.engine.prune", "feta.cli.prune"} <= set(INNER)
    assert {"feta_lab.jobs"} <= ours("feta.cli.prune")  # inside a function
    assert "rich.console" in set(imports_of("feta.cli.console"))
    assert row_of("feta.sparsity") < row_of("feta.pruners.threshold") < row_of("feta.engine.prune")


# The front


def test_every_public_name_resolves():
    for name in feta.__all__:
        assert getattr(feta, name) is not None
    assert dir(feta) == sorted([*feta.__all__, "__version__"])


def test_the_list_is_the_table_and_nothing_else():
    homes = [name for names in feta._HOMES.values() for name in names]
    assert sorted(homes) == sorted(feta.__all__)
    assert len(homes) == len(set(homes))
    assert feta.__all__ == sorted(feta.__all__)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(MODULES["feta"].read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {node.module: tuple(alias.name for alias in node.names) for node in block.body}
    assert {home: set(names) for home, names in seen.items()} == {
        home: set(names) for home, names in feta._HOMES.items()
    }


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="module 'feta' has no attribute 'prun'"):
        _ = feta.prun


@pytest.mark.parametrize(
    "statement", ["import feta", "import feta; dir(feta); feta.FetaError", "import feta.cli"]
)
def test_importing_does_not_load_torch(statement):
    script = (
        f"import sys\n{statement}\nprint([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (answer.stdout.strip(), answer.stderr) == ("[]", "")
