"""What the pages say is true: their code compiles or runs, their commands and options exist, their tables hold."""

import dataclasses
import importlib
import inspect
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import feta
from feta.cli import app
from feta.pruners import METHODS, make
from feta_lab.data import NAMES
from feta_lab.experiments.bench import Bench
from feta_lab.networks import PRESETS
from pages import PAGES, ROOT, SHOWN, blocks

sys.path.insert(0, str(ROOT / "docs"))
reference = importlib.import_module("reference")
SETTINGS = ("feta.Settings", "feta.Refinement", "feta.Retraining", "feta.Needs", "feta.LayerProblem", "feta.Sparsity")


def text_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def commands() -> Iterator[tuple[str, str]]:
    """(page, command) of every line in a shell block, without prompt and settings."""
    for path in SHOWN:
        for block in blocks(path, "console"):
            for command in block.commands():
                yield path.name, re.sub(r"^([A-Z_]+=\S+\s+)+", "", command)


COMMANDS = sorted(set(commands()))
FETA = [(page, command) for page, command in COMMANDS if re.match(r"feta\b", command)]
MAKE = [(page, command) for page, command in COMMANDS if command.startswith("make")]


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """A table's rows by their first cell; the first table with code in it after the heading."""
    section = text_of(page).partition(f"\n{heading}\n")[2]
    section = re.split(rf"^#{{1,{heading.count('#')}}} ", section, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"^\| `([^`]+)` \|(.*)\|$", section, flags=re.MULTILINE)
    return {name: [cell.strip().strip("`") for cell in rest.split("|")] for name, rest in found}


def value(text: str) -> str | float:
    """1e13 and 10000000000000.0 are the same default."""
    try:
        return float(text)
    except ValueError:
        return text


# Code


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_code_compiles(path):
    """Also of blocks that are not run."""
    for block in blocks(path, "python"):
        compile(block.body, f"{path.name}: {block.body[:40]!r}", "exec")


def test_shells_are_called_console():
    """Blocks of another name would be run by no test."""
    for path in SHOWN:
        assert not blocks(path, "bash", "sh", "shell", "py", "pycon", "ipython"), path.name


@pytest.mark.parametrize(("least", "where"), [(0.02, "bits"), (0.17, "gaps"), (0.0, "all")])
def test_files_can_be_read_as_the_page_says(tmp_path, least, where):
    torch = pytest.importorskip("torch")
    from feta.files import archive, container

    scope: dict[str, object] = {}
    exec(next(one.body for one in blocks(ROOT / "docs" / "files.md", "python") if "def read(" in one.body), scope)
    torch.manual_seed(0)
    layer = torch.nn.Linear(30, 70)
    with torch.no_grad():
        layer.weight[layer.weight.abs() < least] = 0
    feta.save(layer, tmp_path / "layer.safetensors")
    stored, texts = container.read(tmp_path / "layer.safetensors")
    noted = archive.split(stored["feta.archive"], texts["feta.index"], "", "")[1]["feta.packed"]["weight"]
    assert noted["where"] == where
    read = scope["read"](str(tmp_path / "layer.safetensors"))
    assert sorted(read) == ["bias", "weight"]
    assert (read["weight"] == layer.weight.detach().numpy()).all()


# Commands


@pytest.mark.parametrize(("page", "command"), FETA)
def test_command_exists_with_these_options(page, command):
    tokens = shlex.split(command, comments=True)[1:]
    if not tokens or "--help" in tokens or "--version" in tokens:
        return
    quiet = {"exit_on_error": False, "print_error": False, "help_on_error": False}
    _, bound, _ = app.parse_args(tokens, **quiet)
    if tokens[0] == "bench":
        given = {key: tuple(bound.arguments[key].split(",")) for key in ("nets", "methods") if key in bound.arguments}
        Bench(**given)
    # An option of a method is free text to the parser.
    for token, value in zip(tokens, [*tokens[1:], ""], strict=True):
        if found := re.fullmatch(r"--([a-z-]+)\.([a-z_-]+)", token):
            make(found[1], {found[2]: value})


@pytest.mark.parametrize(("page", "command"), MAKE)
def test_make_target_exists(page, command):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in shlex.split(command, comments=True)[1:]:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"{page}: make {target}"


def test_the_rules_see_what_is_there():
    """Guards the tests above: they must look at real blocks."""
    said = {command.split()[1] for _, command in FETA if " " in command}
    assert {"train", "prune", "eval", "info", "bench", "data"} <= said
    with pytest.raises(Exception, match="Unknown option"):
        test_command_exists_with_these_options("", "feta prune net.safetensors --sparsty 0.9")
    with pytest.raises(feta.ConfigError, match="unknown option of alps"):
        test_command_exists_with_these_options("", "feta prune net.safetensors --alps.refits exact")


# Tables


def test_every_public_name_is_in_the_reference():
    places = [place for _, places in reference.PLACES.values() for place in places.split()]
    shown = [place for place in places if place.count(".") == 1]
    assert sorted(shown) == sorted(f"feta.{name}" for name in feta.__all__)


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_reference_is_that_of_today(name):
    assert text_of(name) == reference.PAGES[name](), "run: python docs/reference.py"


def test_every_parameter_has_a_meaning():
    """Of functions, of settings and of what methods are given; fields of reports may speak for themselves."""
    for _, places in reference.PLACES.values():
        for place in places.split():
            thing = reference.found(place)
            if inspect.isfunction(thing) or place in SETTINGS:
                assert not [one.name for one in reference.parameters(thing) if not one.meaning], place
    assert "|  |\n" not in text_of("commands.md").replace("| | type | default | |\n", "")


def test_the_reference_sees_what_is_missing():
    """Guards the test above."""

    def bare(known: int, other: str = "x") -> None:
        """A function.

        known: a number.
        """

    assert reference.parameters(bare) == [("known", "int", "", "a number."), ("other", "str", '"x"', "")]


def test_the_method_on_the_page_is_the_example():
    example = (ROOT / "examples" / "custom_pruner.py").read_text(encoding="utf-8")
    begin, end = example.index("@dataclass"), example.index("digits = load")
    assert example[begin:end].strip() in text_of("own_method.md")


@pytest.mark.parametrize("name", METHODS)
def test_every_option_is_documented(name):
    documented = rows("methods.md", f"## {name}")
    options = {field.name: value(str(field.default)) for field in dataclasses.fields(METHODS[name])}
    assert {key: value(cells[0]) for key, cells in documented.items() if len(cells) == 2} == options


def test_tables_of_presets_data_sets_statuses_and_pages():
    presets = rows("networks.md", "## Presets")
    assert presets == {preset.name: [preset.specification, preset.data] for preset in PRESETS.values()}
    assert re.findall(r"^\| `([\w-]+)` \| \d", text_of("data.md"), flags=re.MULTILINE) == list(NAMES)
    assert list(rows("engine.md", "## Statuses")) == [status.value for status in feta.Status]
    assert all(f"({path.name})" in text_of("index.md") for path in PAGES if path.stem != "index")


def anchors(path: Path) -> set[str]:
    """Of a page's headings, as GitHub and Sphinx make them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!https?:)([^)\s]*)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        place = (path.parent / name).resolve() if name else path
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), target


@pytest.mark.parametrize("path", [*SHOWN, ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_pages_name_no_place_of_one_machine(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(work|home|root|tmp|opt|mnt)/", text)
