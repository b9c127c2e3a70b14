"""Pages say what the records say, and records say which code made them."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "docs"))
figures = importlib.import_module("figures")
RECORDS = sorted((ROOT / "results").glob("*/*.jsonl"))


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("path", figures.PAGES, ids=lambda path: path.name)
def test_a_page_says_what_the_records_say(path):
    page = path.read_text(encoding="utf-8")
    assert figures.filled(page) == page, "run python docs/figures.py"


def test_every_text_has_a_place():
    places = {
        place[1] for path in figures.PAGES for place in figures.PLACE.finditer(path.read_text(encoding="utf-8"))
    }
    assert places == set(figures.TEXTS)


def test_texts_stand_between_empty_lines_or_after_the_words_of_their_line(monkeypatch):
    monkeypatch.setattr(figures, "TEXTS", {"one": lambda: "five", "two": lambda: "| a |\n| --- |"})
    page = "It is <!-- records: one -->stale<!-- end -->.\n\n<!-- records: two -->\nold\n<!-- end -->\n"
    expected = (
        "It is <!-- records: one -->five<!-- end -->.\n\n<!-- records: two -->\n\n| a |\n| --- |\n\n<!-- end -->\n"
    )
    assert figures.filled(page) == expected
    assert figures.filled(expected) == expected


def test_an_unknown_name_is_refused():
    with pytest.raises(SystemExit, match=r"must be one of outcome, .* got nothing"):
        figures.filled("<!-- records: nothing --><!-- end -->")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_records_name_a_clean_commit(path):
    commits = {json.loads(line)["environment"]["commit"] for line in path.read_text().splitlines()}
    assert not [commit for commit in commits if not re.fullmatch("[0-9a-f]{12}", commit)]
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("needs the whole history")
    assert not [commit for commit in commits if git("merge-base", "--is-ancestor", commit, "HEAD").returncode]
