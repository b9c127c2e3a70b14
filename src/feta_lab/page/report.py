"""The report: one page, figures and tables from the records under a results folder.

    build(Path("results"), Path("site"))   ->   site/report.html, site/figures/*.png|svg, site/tables/*.md|csv|tex

Everything is a function of the records alone: the same records give the same bytes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from feta_lab.claims import Finding, judge_claims
from feta_lab.page.blocks import Block, Cell, Fold, Section, Table, Text, Verdicts
from feta_lab.page.document import blocks_of, render, save_figures, write, write_tables
from feta_lab.page.sections import answer, bench, fig2, fig3, losses, table1
from feta_lab.results import PassedOver, Results, gather

TITLE = "The paper's claims, measured again"
WORDS = {"holds": "hold", "depends": "depend on the case", "does not hold": "do not hold"}
WORDS["not measured"] = "are not measured"
SECTIONS = (table1, fig2, losses, fig3, bench)  # in the order of the page
ENVIRONMENT = ("processor", "cores", "threads", "gpu", "system", "python", "torch", "numpy", "feta", "commit")


@dataclass(frozen=True)
class Report:
    """What was written, and what it says."""

    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]
    findings: tuple[Finding, ...]
    sources: dict[str, int]  # folder -> how many records
    passed_over: tuple[PassedOver, ...] = ()


def page_of(results: Path, out: Path | None = None) -> Path:
    """The file of the page: `out` where that is one, and else report.html in that folder or in the results folder."""
    out = out or results
    return out if out.suffix.lower() in (".html", ".htm") else out / "report.html"


def build(results: Path, out: Path | None = None) -> Report:
    """Write the report of a results folder.

    results: a folder with the records of experiments and benchmarks below it.
    out: the folder to write to, or the page's own file (.html); by default the results folder.

    Returns what was written. Raises FileError where records are missing or broken, or a file cannot be written.
    """
    target = page_of(results, out)
    found = gather(results)
    findings = judge_claims(found)
    blocks = report_blocks(found, findings)
    write(target, render(TITLE, _subtitle(found), blocks, {}, contents=True))
    rows = tuple((f.claim, f.verdict, f.answer, f.why) for f in findings)
    claims = Table("The paper's claims", ("claim", "verdict", "numbers", "why"), rows, name="claims")
    named = [block for block in blocks_of(blocks) if isinstance(block, Table) and block.name]
    tables = write_tables([claims, *named], target.parent / "tables")
    figures = save_figures(blocks, target.parent / "figures")
    sources = Counter(source.name for source in found.sources for _ in source.records)
    return Report(target, tuple(figures), tuple(tables), findings, dict(sources), found.passed_over)


def report_blocks(results: Results, findings: tuple[Finding, ...]) -> list[Block]:
    """The page: the answer, then the verdicts, then all that was measured, each experiment behind a fold."""
    said = [str(finding.verdict) for finding in findings]
    counts = ", ".join(f"{said.count(name)} {words}" for name, words in WORDS.items() if name in said)
    claims = Text(f"Of {len(findings)} claims, {counts}."), Verdicts(findings)
    measured = [section for module in SECTIONS for section in module.sections(results)]
    measured += [_environments(results), *_passed_over(results.passed_over)]
    folds = tuple(Fold(section.heading, section.blocks) for section in measured)
    return [*answer.sections(results), Section("Claims", claims), Section("Measurements", folds)]


def _subtitle(results: Results) -> str:
    records = [record for source in results.sources for record in source.records]
    data = sorted({str(record.get("data", "")) for record in records} - {""})
    return (
        "Revisiting hard thresholding for DNN pruning (Pitas, Davies, Vandergheynst), judged by "
        f"{len(records):,} records on {', '.join(data)}."
    )


def _environments(results: Results) -> Section:
    """Where the records were made: a row per folder, data set and machine."""
    counts: Counter[tuple[str, ...]] = Counter()
    for source in results.sources:
        for record in source.records:
            machine = record.get("environment") or {}
            values = [record.get(field, "") for field in ("data", "device")]
            values += [machine.get(field, "") for field in ENVIRONMENT]
            counts[source.name, *map(str, values)] += 1
    rows: list[tuple[Cell, ...]] = [(key[0], count, *key[1:]) for key, count in counts.items()]
    columns = ("records of", "how many", "data", "device", *ENVIRONMENT)
    return Section("Environments", (Table("", columns, tuple(rows)),))


def _passed_over(found: Sequence[PassedOver]) -> list[Section]:
    """What is in the folder and not on the page."""
    said = Text("A cell counts once, in the settings that most cells of its network share.")
    rows = tuple((one.folder, one.records, one.why) for one in found)
    table = Table("", ("folder", "records", "passed over because"), rows)
    return [Section("Passed over", (said, table))] if rows else []
