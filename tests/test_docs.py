"""What the pages say is true: their code compiles or runs, their commands and options exist, their tables hold."""

import dataclasses
import importlib
import os
import re
import shlex
import subprocess
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

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
SHOWN = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
BLOCK = re.compile(r"^(?P<runs>% runs\n+)?```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "% runs"  # on the line above a block that is run, not only compiled


def text_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(path: Path, *languages: str) -> list[re.Match[str]]:
    found = BLOCK.finditer(path.read_text(encoding="utf-8"))
    return [block for block in found if block["language"] in languages]


def commands() -> Iterator[tuple[str, str]]:
    """(page, command) of every line in a shell block, without prompt, settings and comments."""
    for path in SHOWN:
        for block in blocks(path, "console", "bash", "sh"):
            prompt = "$ " if block["language"] == "console" else ""
            for line in block["body"].replace("\\\n", " ").splitlines():
                if line.startswith(prompt) and line.strip():
                    command = re.sub(r"^([A-Z_]+=\S+\s+)+", "", line.removeprefix(prompt).strip())
                    yield path.name, command


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
    for block in blocks(path, "python"):
        compile(block["body"], f"{path.name}: {block['body'][:40]!r}", "exec")


@pytest.mark.parametrize(
    "path", [path for path in PAGES if MARK in path.read_text(encoding="utf-8")], ids=lambda path: path.name
)
def test_code_runs(path, tmp_path):
    code = "\n".join(block["body"] for block in blocks(path, "python") if block["runs"])
    assert code.strip(), f"{path.name}: '{MARK}' must stand above a python block"
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize(("least", "where"), [(0.02, "bits"), (0.17, "gaps"), (0.0, "all")])
def test_files_can_be_read_as_the_page_says(tmp_path, least, where):
    torch = pytest.importorskip("torch")
    from feta.files import archive, container

    scope: dict[str, object] = {}
    exec(next(block["body"] for block in blocks(ROOT / "docs" / "files.md", "python") if block["runs"]), scope)
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


def test_every_public_name_is_documented():
    shown = re.findall(r"^\.\. auto\w+:: (feta\.[\w.]+)", text_of("api.md"), flags=re.MULTILINE)
    assert sorted(name for name in shown if name.count(".") == 1) == sorted(f"feta.{name}" for name in feta.__all__)
    for name in shown:  # those of other rooms must be where the page says
        home, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(home), last), name


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


@pytest.mark.parametrize("path", [*SHOWN, ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_pages_name_no_place_of_one_machine(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(work|home|root|tmp|opt|mnt)/", text)
