"""The report: one page, figures and tables from the records under a results folder.

    build(Path("results"), Path("site"))   ->   site/report.html, site/figures/*.png|svg, site/tables/*.md|csv|tex

Everything is a function of the records alone: no clock, no network, the same records give the same bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from feta.errors import ConfigError
from feta_lab import page
from feta_lab.claims import Finding, judge_claims
from feta_lab.report import benchmarks, environments, figure2, figure3, losses, table1
from feta_lab.report.files import Exhibit, write_tables
from feta_lab.results import PassedOver, Results, gather

TITLE = "The paper's claims, measured again"


@dataclass(frozen=True)
class Report:
    """What was written, and what it says."""

    page: Path
    figures: tuple[Path, ...]
    tables: tuple[Path, ...]
    findings: tuple[Finding, ...]
    sources: dict[str, int]  # folder -> how many records
    passed_over: tuple[PassedOver, ...] = ()
    note: str = ""  # why there are no figures


def build(results: Path, out: Path | None = None) -> Report:
    """Write the report of a results folder; `out` is a folder, or the page's own file (.html)."""
    out = results if out is None else out
    target = out if out.suffix.lower() in (".html", ".htm") else out / "report.html"
    found = gather(results)
    findings = judge_claims(found)
    exhibits = [claims_exhibit(findings), *_exhibits(found)]
    page.write(target, report_page(found, findings))
    tables = write_tables(exhibits, target.parent / "tables")
    figures, note = _figures(found, target.parent / "figures")
    sources: Counter[str] = Counter()
    for source in found.sources:
        sources[source.name] += len(source.records)
    return Report(target, tuple(figures), tuple(tables), findings, dict(sources), found.passed_over, note=note)


def report_page(results: Results, findings: tuple[Finding, ...]) -> str:
    """The page: the verdicts first, then the experiments that have records, then where they ran."""
    sections = [
        page.Section("Claims", (page.Text(None, (_counts(findings),)), page.Verdicts(_verdicts(findings)))),
        *table1.sections(results),
        *figure2.sections(results),
        *losses.sections(results),
        *figure3.sections(results),
        *benchmarks.sections(results),
        environments.section(results),
        *_passed_over(results),
    ]
    return page.render(TITLE, _subtitle(results), sections, {}, figure2.order(results), contents=True)


def _subtitle(results: Results) -> str:
    count = sum(len(source.records) for source in results.sources)
    data = sorted({str(r.get("data", "")) for source in results.sources for r in source.records} - {""})
    return (
        "Revisiting hard thresholding for DNN pruning (Pitas, Davies, Vandergheynst), judged by "
        f"{count:,} records on {', '.join(data)}."
    )


def _counts(findings: tuple[Finding, ...]) -> str:
    said = [finding.verdict for finding in findings]
    names: tuple[page.VerdictName, ...] = ("holds", "depends", "does not hold", "not measured")
    words = ("hold", "depend on the case", "do not hold", "are not measured")
    counts = [f"{said.count(name)} {word}" for name, word in zip(names, words, strict=True) if name in said]
    return f"Of {len(said)} claims, {', '.join(counts)}."


def _passed_over(results: Results) -> list[page.Section]:
    """What is in the folder and not on the page."""
    if not results.passed_over:
        return []
    said = "A cell counts once, in the settings that most cells of its network share."
    rows: tuple[tuple[page.Cell, ...], ...] = tuple((one.folder, one.records, one.why) for one in results.passed_over)
    table = page.Table("", ("folder", "records", "passed over because"), rows)
    return [page.Section("Passed over", (page.Text(None, (said,)), table))]


def _verdicts(findings: tuple[Finding, ...]) -> tuple[page.Verdict, ...]:
    return tuple(
        page.Verdict(f.claim, f.verdict, f.answer, f.why, page.Table("", f.columns, f.rows) if f.rows else None)
        for f in findings
    )


def claims_exhibit(findings: tuple[Finding, ...]) -> Exhibit:
    columns = ("claim", "verdict", "numbers", "why")
    rows = tuple((f.claim, f.verdict, f.answer, f.why) for f in findings)
    return Exhibit("claims", page.Table("The paper's claims", columns, rows))


def _exhibits(results: Results) -> list[Exhibit]:
    return [
        *table1.exhibits(results),
        *figure2.exhibits(results),
        *losses.exhibits(results),
        *figure3.exhibits(results),
    ]


def _figures(results: Results, folder: Path) -> tuple[list[Path], str]:
    try:
        return [*figure2.figures(results, folder), *figure3.figures(results, folder)], ""
    except ConfigError as missing:
        return [], f"no figures: {missing}"
