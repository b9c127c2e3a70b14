"""feta report: its answer to people and to programs, and what it refuses."""

import json
from pathlib import Path

RECORD = {
    "kind": "bench", "net": "dense-mnist", "data": "MNIST", "data_name": "mnist", "device": "cpu", "seed": 0,
    "sparsity": 0.9, "compensate": False, "samples": None, "dense_accuracy": 98.0, "relative_error": [0.1],
    "floor_seconds": 1.0, "timed": True, "environment": {"torch": "2"},
}  # fmt: skip


def records(*cells: tuple[str, float, float]) -> None:
    Path("results/mine").mkdir(parents=True)
    lines = [
        RECORD | {"key": {"method": name}, "method": name, "accuracy": score, "seconds": time}
        for name, score, time in cells
    ]
    Path("results/mine/records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_one_json_object(run):
    records(("feta", 95.0, 1.0), ("lobs", 90.0, 9.0))
    found = run("report results -o site --json").json()
    assert (found["page"], found["records"]) == ("site/report.html", {"mine": 2})
    assert all(Path(path).is_file() for path in (found["page"], *found["figures"], *found["tables"]))
    verdicts = {claim["key"]: claim["verdict"] for claim in found["claims"]}
    # One network cannot tell more than a coin.
    assert (verdicts["feta-most-accurate"], verdicts["feta-faster"]) == ("depends", "depends")
    assert verdicts["threshold-cheapest"] == "not measured"
    assert set(found["claims"][0]) == {"key", "claim", "verdict", "numbers", "why"}


def test_what_was_passed_over_is_said(run):
    records(("feta", 95.0, 1.0), ("lobs", 90.0, 9.0))
    Path("results/notes").mkdir()
    Path("results/notes/records.jsonl").write_text("once upon a time\n")
    answer = run("report results --json")
    assert answer.code == 0
    (one,) = json.loads(answer.out)["passed_over"]
    assert (one["folder"], one["records"]) == ("notes", 0)
    assert answer.err.startswith("passed over: 0 records of notes: results/notes/records.jsonl, line 1: ")


def test_words_for_people(run):
    records(("feta", 95.0, 9.0), ("lobs", 90.0, 1.0))
    run("report results -o page.html").says("does not hold", "written: page.html\n")
    assert Path("page.html").is_file()
    run("report nowhere").refused("results must be a folder, got nowhere")


def test_nothing_is_overwritten_without_force(run):
    records(("feta", 95.0, 9.0), ("lobs", 90.0, 1.0))
    Path("page.html").write_text("mine")
    run("report results -o page.html").refused("--output must be a new file, got page.html", "--force replaces it")
    Path("tables").mkdir()
    Path("tables/claims.md").write_text("mine")
    run("report results -o other.html").refused("tables must be new or empty", "--force replaces them")
    assert [path.read_text() for path in (Path("page.html"), Path("tables/claims.md"))] == ["mine", "mine"]
    run("report results -o page.html --force").says("written: page.html")
    assert "mine" not in (Path("page.html").read_text(), Path("tables/claims.md").read_text())
