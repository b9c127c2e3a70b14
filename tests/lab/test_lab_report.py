"""The report: what is written from which records, and how the page behaves in a browser."""

import csv
import json
import random
import re
from pathlib import Path

import handmade
import pytest
from handmade import write

from feta.errors import FileError
from feta_lab.page import report
from feta_lab.page.sections import answer
from feta_lab.page.sections.table1 import machines
from feta_lab.results import gather, unretrained
from feta_lab.results.summaries import duration


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return handmade.results(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> report.Report:
    return report.build(folder, tmp_path_factory.mktemp("site"))


def bench_record(**fields: object) -> dict[str, object]:
    cell = {"kind": "bench", "method": "feta", "seed": 0, "sparsity": 0.9, "compensate": False, "samples": None}
    scores = {"accuracy": 95.0, "dense_accuracy": 98.0, "relative_error": [0.1], "floor_seconds": 1.0, "seconds": 2.0}
    return handmade.everywhere("dense-mnist", **{**cell, **scores, **fields})


# Reading


def test_only_the_last_record_of_a_cell_counts(tmp_path: Path) -> None:
    cells = [bench_record(accuracy=None, reason="killed"), bench_record(seed=1), bench_record(accuracy=90.0)]
    write(tmp_path / "mine", cells)
    (source,) = gather(tmp_path).sources
    assert (source.name, source.kind) == ("mine", "bench")
    assert [(r["seed"], r["accuracy"]) for r in source.records] == [(0, 90.0), (1, 95.0)]


def test_one_source_per_network(tmp_path: Path) -> None:
    """Figure 2 before benchmarks, then the benchmark with most of what is wanted; compensated cells never."""
    few = [bench_record(device="cpu"), bench_record(device="cpu", method="lobs", compensate=True)]
    many = [bench_record(device="cuda", method=method, timed=False) for method in ("feta", "alps")]
    write(tmp_path / "few", few)
    write(tmp_path / "many", many)
    assert [(r["device"], r["method"]) for r in unretrained(gather(tmp_path))] == [("cuda", "feta"), ("cuda", "alps")]
    timed = unretrained(gather(tmp_path), ("feta", "lobs"), timed=True)
    assert [(r["device"], r["method"], r["prune_seconds"]) for r in timed] == [("cpu", "feta", 2.0)]
    write(tmp_path / "fig2", [bench_record(kind="fig2", refine=on, prune_seconds=1.0) for on in (False, True)])
    assert [(r["kind"], r["refine"]) for r in unretrained(gather(tmp_path))] == [("fig2", False)]


def fig2_cells(**fields: object) -> list[dict[str, object]]:
    cell = {"kind": "fig2", "prune_seconds": 1.0, "refine": False, "passes": None, "samples": None}
    return [bench_record(seed=seed, **{**cell, **fields}) for seed in range(3)]


def test_a_cell_in_several_folders_counts_once(tmp_path: Path) -> None:
    """The folder named like the experiment first, then the last by name; and it is said."""
    for name, accuracy, seeds in (("fig2-a", 80.0, 4), ("fig2-b", 85.0, 4), ("fig2", 90.0, 3)):
        cells = [{**fig2_cells()[0], "seed": seed, "accuracy": accuracy} for seed in range(seeds)]
        write(tmp_path / name, cells)
    found = gather(tmp_path)
    kept = {s.name: [(r["seed"], r["accuracy"]) for r in s.records] for s in found.sources}
    assert kept == {"fig2": [(0, 90.0), (1, 90.0), (2, 90.0)], "fig2-b": [(3, 85.0)]}
    passed = {(one.folder, one.records, one.why.removeprefix("the same cells are in ")) for one in found.passed_over}
    assert passed == {("fig2-b", 3, "fig2"), ("fig2-a", 3, "fig2"), ("fig2-a", 1, "fig2-b")}
    made = report.build(tmp_path)
    assert made.sources == {"fig2": 3, "fig2-b": 1}
    assert (
        "the same cells are in fig2-b"
        in made.page.read_text(encoding="utf-8").partition("<summary>Passed over</summary>")[2]
    )
    assert made.passed_over == found.passed_over


def test_cells_of_other_settings_are_not_averaged_with_the_rest(tmp_path: Path) -> None:
    few = [{**cell, "method": "lobs", "accuracy": 20.0} for cell in fig2_cells(samples=100)[:2]]
    refined = fig2_cells(refine=True, passes=3) + fig2_cells(refine=True, passes=9)[:1]
    write(tmp_path / "fig2", [*few, *fig2_cells(), *refined])
    found = gather(tmp_path)
    (source,) = found.sources
    kept = [(r["method"], r["refine"], r["passes"]) for r in source.records]
    assert kept == [("feta", False, None)] * 3 + [("feta", True, 3)] * 3
    why = [(one.records, one.why.partition("dense-mnist: ")[2]) for one in found.passed_over]
    assert sorted(why) == [(1, "passes 9 instead of 3"), (2, "samples 100 instead of None")]


def test_of_two_settings_that_as_many_cells_have_the_last_written_counts(tmp_path: Path) -> None:
    table1 = [{**one, "max_epochs": 3, "tolerance": 0.1} for one in handmade.table1(handmade.random.Random(0))]
    again = [{**one, "max_epochs": 30} for one in table1]
    write(tmp_path / "table1", [*table1, *again])
    (source,) = gather(tmp_path).sources
    assert {record["max_epochs"] for record in source.records} == {30}
    assert len(source.records) == len(again)


def test_other_devices_are_other_cells(tmp_path: Path) -> None:
    write(tmp_path / "fig2", fig2_cells(device="cpu"))
    write(tmp_path / "fig2-gpu", fig2_cells(device="cuda"))
    cells = [bench_record(device="cpu", accuracy=90.0), bench_record(device="cuda", accuracy=80.0)]
    write(tmp_path / "mine", cells)
    made = report.build(tmp_path)
    assert (made.sources, made.passed_over) == ({"fig2": 3, "fig2-gpu": 3, "mine": 2}, ())
    section = made.page.read_text(encoding="utf-8").partition("<summary>Benchmark mine</summary>")[2]
    assert "dense-mnist (mnist, cpu)" in section
    assert "dense-mnist (mnist, cuda)" in section


def test_records_tell_their_kind_in_a_folder_of_any_name(tmp_path: Path) -> None:
    dice = handmade.random.Random(0)
    table1 = [{**cell, "max_epochs": 30, "tolerance": 0.1} for cell in handmade.table1(dice)]
    write(tmp_path / "b1", [*table1, *handmade.fig2(dice)])  # one --out for both
    write(tmp_path / "layers", handmade.layer_cells("conv-mnist", 4, dice))
    write(tmp_path / "fig3b", handmade.layer_cells("conv-cifar", 8, dice))
    write(tmp_path / "components", handmade.k_cells(dice))
    write(tmp_path / "other", [{"kind": "demo"}])  # not an experiment: passed by
    assert [(s.name, s.kind) for s in gather(tmp_path / "fig3b").sources] == [("fig3b", "fig3b")]
    kinds = [f"{source.name} {source.kind}" for source in gather(tmp_path).sources]
    assert kinds == ["b1 table1", "b1 fig2", "components fig3c", "fig3b fig3b", "layers fig3a"]
    assert [len(source.records) for source in gather(tmp_path).sources][:2] == [162, 318]


TABLE1 = {**handmade.table1(handmade.random.Random(0))[0], "key": {"net": "dense-mnist"}}
WITHOUT = {name: value for name, value in TABLE1.items() if name != "retrained_accuracy"}


WRONG = (
    ("accuracy", "abc", "a finite number, got 'abc'"), ("accuracy", True, "a finite number, got True"),
    ("sparsity", None, "a finite number, got None"), ("seed", 0.5, "a whole number, got 0.5"),
    ("net", 7, "a text, got 7"), ("key", 7, "an object, got 7"), ("relative_error", ["x"], "finite numbers, got"),
    ("environment", "here", "an object, got 'here'"), ("refine", 1, "true or false, got 1"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        *((json.dumps(TABLE1 | {name: value}), f"{name} must be {message}") for name, value, message in WRONG),
        *((line, f"must be a JSON object, got {got}") for line, got in (("3", 3), ("null", None), ("[]", r"\[\]"))),
        (json.dumps(WITHOUT), "must have retrained_accuracy to be a record of table1"),
        ('{"net": "a", "refine": true', "must be a JSON object"),
        (json.dumps(TABLE1 | {"accuracy": float("nan")}), "must be a JSON object, got the number nan"),
        (json.dumps(TABLE1).replace("8.62", "1" * 5000), "must be a JSON object, got a number of 5,000 digits"),
        (json.dumps(TABLE1 | {"net": "\ud800"}), "must be a JSON object, got .*surrogates not allowed"),
    ],
)
def test_a_broken_record_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "table1", [TABLE1])
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(FileError, match=f"{path}, line 2: {message}"):
        gather(tmp_path)


def test_a_file_of_somebody_else_is_passed_over_and_named(tmp_path: Path) -> None:
    failed = WITHOUT | {"accuracy": None, "key": {}}  # needs no results
    write(tmp_path / "table1", [TABLE1, failed])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "records.jsonl").write_text("once upon a time\n")
    (one,) = gather(tmp_path).passed_over
    assert (one.folder, one.records) == ("notes", 0)
    assert f"{tmp_path / 'notes' / 'records.jsonl'}, line 1: must be a JSON object" in str(one)
    with pytest.raises(FileError, match="line 1: must be a JSON object"):
        gather(tmp_path / "notes")


def test_folders_without_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"must be a folder, got .*nowhere; make one with 'feta reproduce'"):
        gather(tmp_path / "nowhere")
    with pytest.raises(FileError, match="must hold records"):
        gather(tmp_path)
    write(tmp_path / "fig2", [{"net": "a", "accuracy": 1.0}])
    with pytest.raises(
        FileError, match="line 1: must have method, seed, sparsity, refine, dense_accuracy, prune_sec"
    ):
        gather(tmp_path)


# Writing


def test_what_is_written(made: report.Report) -> None:
    names = {path.name for path in (*made.figures, *made.tables)}
    figures, tables = (("fig2", "fig3ab", "fig3-depth", "fig3c"), ("claims", "table1", "fig2", "fig3ab", "fig3c"))
    assert {f"{name}.{kind}" for name in figures for kind in ("png", "svg")} <= names
    assert {f"{name}.{kind}" for name in tables for kind in ("md", "csv", "tex")} <= names
    assert all(path.stat().st_size > 100 for path in (*made.figures, *made.tables))
    assert made.sources == {"fig2": 318, "fig3a": 56, "fig3b": 112, "fig3c": 490, "recipes": 36, "table1": 162}


def test_the_page_says_everything(made: report.Report) -> None:
    text = made.page.read_text(encoding="utf-8")
    assert re.findall("<h2>(.*?)</h2>", text) == ["The answer", "Claims", "Measurements"]
    for name in ("Table 1", "Figure 2", "Loss against sparsity", "Figure 3 a and b", "Figure 3 c", "Environments"):
        assert f"<summary>{name}</summary>" in text
    for finding in made.findings:
        assert finding.claim.replace("'", "&#39;") in text
    assert "stopped after 600 s" in text  # a failed cell, with its reason
    assert "&gt; " in text  # a time that did not bring the accuracy back
    assert text.count("<figure>") == len(made.figures) / 2


def test_the_page_is_a_function_of_the_records(made: report.Report, folder: Path, tmp_path: Path) -> None:
    again = report.build(folder, tmp_path / "again.html")
    assert again.page.read_bytes() == made.page.read_bytes()
    assert [path.read_bytes() for path in again.figures] == [path.read_bytes() for path in made.figures]


def test_the_answer_is_the_recipe_that_loses_least(made: report.Report) -> None:
    text = made.page.read_text(encoding="utf-8")
    said = text.partition(">The answer</h2>")[2].partition("</section>")[0]
    assert "Take feta.prune(model, inputs, sparsity): of 3 recipes it loses least" in said
    assert "takes 0.5 s and loses 4.0" in said
    assert "With 200 samples default loses 3.0" in said
    assert "shared the machine" not in said
    facts = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", said)
    assert [name for name, _ in facts][1:] == [
        "points lost at 95 % zeros",
        "points lost at 98 % zeros",
        "to prune a network",
    ]
    assert [round(float(number), 1) for _, number in facts[1:3]] == [1.0, 2.0]  # with all samples
    assert (facts[0][1], facts[3][1]) == ("default", "18 s")
    (path,) = (path for path in made.tables if path.name == "answer-by-samples.md")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line.split("|")[1].strip() for line in lines[4:]] == ["default", "rival", "fast"]
    heads = [head.strip() for head in lines[2].split("|")[2:5]]
    assert heads == ["95 %, 200 samples", "95 %, 1000 samples", "95 %, all samples"]


def test_recipes_that_were_not_all_run_are_compared_where_they_were(tmp_path: Path) -> None:
    cells = [cell for cell in handmade.recipes(random.Random(0)) if cell["rows"] != 200 or cell["recipe"] != "rival"]
    write(tmp_path / "recipes", cells)
    text = report.build(tmp_path).page.read_text(encoding="utf-8")
    assert "95 %, 1000 samples" in text
    assert "95 %, 200 samples" not in text
    few = [cell for cell in cells if cell["net"] == "dense-mnist" or cell["recipe"] != "fast"]
    write(tmp_path / "recipes", [cell | {"timed": False} for cell in few])
    said = report.build(tmp_path).page.read_text(encoding="utf-8").partition(">The answer</h2>")[2]
    assert "dense-cifar" not in said.partition("</section>")[0]  # a network that not all recipes had
    assert "other runs shared the machine" in said
    write(tmp_path / "recipes", [cell | {"accuracy": None} for cell in cells])
    assert "The answer" not in report.build(tmp_path).page.read_text(encoding="utf-8")


def test_of_two_that_lose_the_same_the_effort_goes_first_which_can_be_typed() -> None:
    cells = handmade.recipes(random.Random(0))
    same = [cell | {"recipe": "feta-sensitivity"} for cell in cells if cell["recipe"] == "fast"]
    found = answer.compared([*same, *cells])
    assert found is not None
    assert found.recipes == ["default", "rival", "fast", "feta-sensitivity"]


def test_times_are_medians_and_accuracies_are_means(made: report.Report, folder: Path) -> None:
    (path,) = (path for path in made.tables if path.name == "table1.csv")
    rows = {(row["net"], row["method"]): row for row in csv.DictReader(path.read_text().splitlines())}
    cells = [json.loads(line) for line in (folder / "table1" / "records.jsonl").read_text().splitlines()]
    mine = [cell for cell in cells if (cell["net"], cell["method"]) == ("dense-mnist", "lobs")]
    totals = [cell["prune_seconds"] + cell["retrain_seconds"] for cell in mine]
    row = rows["dense-mnist", "lobs"]
    ends = [float(row[f"total_seconds{end}"]) for end in ("_low", "", "_high")]
    assert ends == sorted(totals)
    assert float(row["pruned_accuracy"]) == pytest.approx(sum(cell["accuracy"] for cell in mine) / 3)
    assert (row["paper_seconds"], row["runs"], row["recovered"]) == ("180.0", "3", "3")
    failed, ours = rows["conv-cifar", "exact-obs"], rows["dense-mnist", "feta"]
    assert (failed["runs"], ours["paper_seconds"]) == ("0", "")


def test_the_best_cells_stand_out(made: report.Report) -> None:
    texts = {path.name: path.read_text() for path in made.tables}
    stages = [line for line in texts["fig2-stages.md"].splitlines() if "| prune  " in line]
    for column in range(3, 9):
        scores = [line.split("|")[column].strip() for line in stages]
        (strong,) = [score for score in scores if score.startswith("**")]
        assert float(strong.strip("*")) == max(float(s.strip("*")) for s in scores if s[-1].isdigit() or s[0] == "*")
    times = [line.split("|")[2].strip() for line in texts["table1-time.md"].splitlines()[4:]]
    assert [time for time in times if "**" in time] == ["**26 s**"]  # the paper's least
    assert all("**> " not in line for line in texts["table1-time.md"].splitlines())


def test_sections_without_records_are_left_out(tmp_path: Path) -> None:
    cells = [bench_record(), bench_record(method="lobs", seconds=1.0)]
    write(tmp_path / "mine", cells)
    made = report.build(tmp_path)
    text = made.page.read_text(encoding="utf-8")
    assert made.page == tmp_path / "report.html"
    assert re.findall("<h2>(.*?)</h2>", text) == ["Claims", "Measurements"]  # no answer without recipes
    measured = re.findall("<summary>(.*?)</summary>", text.partition(">Measurements</h2>")[2])
    assert [name for name in measured if name != "Every cell"] == [
        "Loss against sparsity",
        "Benchmark mine",
        "Environments",
    ]
    names = {path.name for path in made.figures}
    assert names == {f"mine-{name}-plain.{kind}" for name in ("sparsity", "time") for kind in ("png", "svg")}
    write(tmp_path / "mine", [cell | {"timed": False} for cell in cells])
    shared = report.build(tmp_path, tmp_path / "shared")  # times of a shared machine are not shown
    assert {path.stem for path in shared.figures} == {"mine-sparsity-plain"}


def test_durations() -> None:
    words = {0: "0 ms", 0.002: "2 ms", 0.5: "0.5 s", 26: "26 s", 180: "3.0 min", 3600: "60 min", 10800: "3.0 h"}
    assert {seconds: duration(seconds) for seconds in words} == words


def test_the_machines_behind_the_times() -> None:
    environments = (
        ("dense-mnist", "cpu", {"processor": "Ryzen", "threads": "1", "gpu": "H200"}),
        ("conv-mnist", "cuda", {"processor": "Xeon", "threads": "16", "gpu": "H200"}),
        ("conv-cifar", "cuda:1", {"gpu": "H200"}),
        ("dense-cifar", "cpu", None),
    )
    cells = [{"net": net, "device": device, "environment": where} for net, device, where in environments]
    words = "dense-mnist on Ryzen with 1 thread; conv-mnist, conv-cifar on H200; dense-cifar on a CPU."
    assert machines(cells * 2) == words


# In a browser


@pytest.fixture
def opened(visit, made: report.Report):  # type: ignore[no-untyped-def]
    return visit(made.page)


@pytest.mark.browser
def test_a_table_sorts_by_time_not_by_words(opened) -> None:  # type: ignore[no-untyped-def]
    opened.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
    table = opened.find_element("xpath", "//details[summary='Table 1']//table")
    table.find_element("css selector", "th:nth-child(2) button").click()
    times = [cell.text for cell in table.find_elements("css selector", "tbody td:nth-child(2)")]
    assert times[:4] == ["26 s", "1 min", "3 min", "3 min"]
    assert set(times[4:]) == {"–"}


@pytest.mark.browser
@pytest.mark.parametrize("width", [420, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_answer_is_on_the_first_screen_and_nothing_is_cut_off(opened, width, scheme) -> None:  # type: ignore[no-untyped-def]
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        bottom = "return document.querySelector('#the-answer .facts').getBoundingClientRect().bottom"
        assert opened.execute_script(bottom) < 900
        height = "return document.documentElement.scrollHeight"
        assert opened.execute_script(height) < (4500 if width == 420 else 2500)
        opened.execute_script("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width
        wider = "e => e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1"
        cut = f"return [...document.querySelectorAll('main div, .verdict')].filter({wider}).map(e => e.innerText)"
        assert opened.execute_script(cut) == []
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
