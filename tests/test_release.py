"""What a release says of itself: one version, its licence, whom to cite, and what the distribution holds."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import feta

ROOT = Path(__file__).parents[1]
PRODUCT, LAB = (tomllib.loads((ROOT / path / "pyproject.toml").read_text()) for path in ("", "src/feta_lab"))


def test_the_version_stands_in_one_place_and_the_others_admit_it():
    for project in (PRODUCT, LAB):
        assert project["project"]["dynamic"] == ["version"]
        assert (ROOT / "src/feta_lab" / project["tool"]["hatch"]["version"]["path"]).name == "__init__.py"
    wanted = [*PRODUCT["project"]["optional-dependencies"]["lab"], LAB["project"]["dependencies"][0]]
    for requirement in map(Requirement, wanted):
        assert requirement.name.startswith("feta-prune")
        assert requirement.specifier.contains(feta.__version__)
        assert not requirement.specifier.contains("0.3.0")
    assert re.search(rf"^version: {re.escape(feta.__version__)}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)


def test_licences_and_authors():
    for folder, project in ((ROOT, PRODUCT), (ROOT / "src" / "feta_lab", LAB)):
        assert project["project"]["license"] == "MIT"
        assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
        for name in project["project"]["license-files"]:
            assert (folder / name).is_file()
    cited = (ROOT / "CITATION.cff").read_text()
    for author in ("Pitas", "Davies", "Vandergheynst"):
        assert f"family-names: {author}\n" in cited


def test_dependencies_are_those_that_the_product_imports():
    names = {Requirement(line).name for line in PRODUCT["project"]["dependencies"]}
    assert names == {"torch", "numpy", "scipy", "safetensors", "cyclopts", "rich"}
    assert (ROOT / "src" / "feta" / "py.typed").is_file()


@pytest.mark.parametrize("name", ["bug.yml", "model.yml", "idea.yml"])
def test_issue_templates_have_what_the_form_needs(name):
    yaml = pytest.importorskip("yaml", reason="PyYAML reads the templates")
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text())
    assert {"name", "description", "body"} <= set(form)
    for part in form["body"]:
        assert part["type"] in ("textarea", "input")
        assert part["attributes"]["label"]
