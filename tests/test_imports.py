"""Imports go one way, room by room; the product never needs the laboratory; the public names are those listed."""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import feta

ROOT = Path(__file__).parents[1]
layout = importlib.util.spec_from_file_location("layout", ROOT / "docs" / "layout.py")
drawn = importlib.util.module_from_spec(layout)
layout.loader.exec_module(drawn)

# A room imports from rooms in rows above its own, and from nothing else of ours.
PRODUCT = (
    ("errors",),
    ("gates",),
    ("plugins", "ranks", "pages"),
    ("progress",),
    ("objective",),
    ("layers", "sparsity"),
    ("patterns",),
    ("problem",),
    ("report",),
    ("calibration",),
    ("solvers",),
    ("pruners", "allocation", "masks"),
    ("tuning",),
    ("files",),
    ("engine",),
    ("structured",),
    ("inference",),
    ("certificates",),
    ("theory",),
    ("cli",),
    ("__main__",),
)
LAB = (
    ("data", "networks", "records", "paper"),
    ("store",),
    ("subject", "judge"),
    ("training", "ensemble"),
    ("experiments",),
    ("results",),
    ("claims",),
    ("page",),
    ("demo",),
    ("cli",),
)
ROWS = {
    f"{package}.{room}": row
    for package, rows in (("feta", PRODUCT), ("feta_lab", LAB))
    for row, rooms in enumerate(rows)
    for room in rooms
}
CORE_NEEDS = {"torch", "numpy", "scipy", "safetensors"}
CLI_NEEDS = {"cyclopts", "rich", *CORE_NEEDS}
KERNEL_NEEDS = {"numba", "llvmlite", "triton"}  # of modules that are imported where these can be
KERNELS = {f"feta.inference.{name}" for name in ("simd", "products", "kernels", "gpu_delta_kernel")}
MODULES = drawn.modules()
INNER = sorted(name for name in MODULES if "." in name)


def imports_of(name: str) -> Iterator[str]:
    return drawn.imports_of(name, MODULES)


def ours(name: str) -> set[str]:
    return {target for target in imports_of(name) if target.split(".")[0] in ("feta", "feta_lab")}


def room_of(name: str) -> str:
    return ".".join(name.split(".")[:2])


@pytest.mark.parametrize("name", INNER)
def test_imports_go_one_way(name):
    mine = room_of(name)
    assert mine in ROWS, f"{mine} must have a row in this test"
    for target in ours(name):
        theirs = room_of(target)
        if target == "feta":
            assert mine in ("feta.cli", "feta.__main__"), f"{name} must import modules, not the package's front"
        elif theirs.split(".")[0] != mine.split(".")[0]:
            assert mine.startswith("feta_lab"), f"{name} belongs to the product and must not import {target}"
        elif theirs != mine:
            assert ROWS[theirs] < ROWS[mine], f"{name} must not import {target}"


def test_there_are_no_cycles_between_modules_or_rooms():
    modules = {name: {target for target in ours(name) if "." in target} for name in INNER}
    rooms: dict[str, set[str]] = {}
    for name, targets in modules.items():
        rooms.setdefault(room_of(name), set()).update(map(room_of, targets))
    for graph in (modules, {room: targets - {room} for room, targets in rooms.items()}):
        try:
            list(TopologicalSorter(graph).static_order())
        except CycleError as error:
            pytest.fail(f"they import each other: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("name", [name for name in INNER if name.startswith("feta.pruners.")])
def test_no_pruner_imports_another(name):
    assert {target for target in ours(name) if target.startswith("feta.pruners")} == set()


@pytest.mark.parametrize("name", [name for name in INNER if name.startswith("feta.")])
def test_the_product_needs_little(name):
    foreign = {target.split(".")[0] for target in imports_of(name)} - {"feta"} - sys.stdlib_module_names
    needs = CLI_NEEDS if room_of(name) == "feta.cli" else CORE_NEEDS
    assert foreign <= (needs | KERNEL_NEEDS if name in KERNELS else needs)


def test_the_page_of_the_layout_is_drawn_from_the_imports():
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    assert drawn.filled(text) == text, "run `python docs/layout.py` and commit docs/layout.md"


def test_the_rule_sees_what_is_there():
    """Guards the tests above: they must look at real files and real imports."""
    assert {"feta.errors", "feta.engine.prune", "feta.cli.prune", "feta_lab.store"} <= set(INNER)
    assert {"feta.cli.subject", "feta.engine.settings"} <= ours("feta.cli.prune")  # inside a function
    assert "rich.console" in set(imports_of("feta.cli.console"))
    assert "feta.files.network" in ours("feta_lab.store")


# The front


def test_every_public_name_resolves():
    for name in feta.__all__:
        assert getattr(feta, name) is not None
    assert dir(feta) == sorted([*feta.__all__, "__version__"])
    assert len(feta.__all__) <= 30


def test_the_list_is_the_table_and_what_type_checkers_see():
    homes = [name for names in feta._HOMES.values() for name in names]
    assert sorted(homes) == sorted(feta.__all__) == sorted(set(homes))
    tree = ast.parse(MODULES["feta"].read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {node.module: {alias.name for alias in node.names} for node in block.body}
    assert seen == {home: set(names) for home, names in feta._HOMES.items()}


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="module 'feta' has no attribute 'prun'"):
        _ = feta.prun


@pytest.mark.parametrize("statement", ["import feta", "import feta; dir(feta); feta.FetaError", "import feta.cli"])
def test_importing_does_not_load_torch(statement):
    heavy = "('torch', 'numpy', 'matplotlib', 'pandas', 'feta_lab')"
    script = f"import sys\n{statement}\nprint([m for m in {heavy} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (answer.stdout.strip(), answer.stderr) == ("[]", "")


def test_rooms_that_the_docs_name_need_no_import_of_their_own():
    script = (
        "import feta; feta.pruners.Alps(), feta.allocation.ALLOCATIONS, feta.theory.__name__, feta.files.__name__"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stderr == ""
