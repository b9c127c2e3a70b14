"""feta report: one page with verdicts, figures and tables from the records of experiments."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from feta.cli.console import err, out, print_json, print_table
from feta.cli.options import Force, Json
from feta.cli.places import check_output, check_places
from feta.errors import FileError

KEPT = ("key", "claim", "verdict", "why")


def report(
    results: Path,
    /,
    *,
    output: Annotated[
        Path | None,
        Parameter(
            name=("--output", "-o"),
            help="Folder, or the page's file (.html), with figures/ and tables/ beside it; by default RESULTS.",
        ),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make one self-contained page from the records under RESULTS; figures/ and tables/ are written beside it.

    Parameters
    ----------
    results
        Folder with table1, fig2, fig3a, fig3b, fig3c and benchmarks below it, as far as they exist.
    """
    from feta_lab.page.report import build, page_of

    page = page_of(results, output)
    check_output(page, force)
    for folder in (page.with_name("figures"), page.with_name("tables")):
        if not force and folder.is_dir() and any(folder.iterdir()):
            raise FileError(f"{folder} must be new or empty, got one with files in it; --force replaces them")
    check_places(page)
    made = build(results, output)
    for one in made.passed_over:
        err().print(str(one))
    if json:
        claims = [{"numbers": f.answer, **{n: getattr(f, n) for n in KEPT}} for f in made.findings]
        files = {"page": str(made.page), "figures": [*map(str, made.figures)], "tables": [*map(str, made.tables)]}
        passed_over = [asdict(one) for one in made.passed_over]
        print_json({**files, "records": made.sources, "passed_over": passed_over, "claims": claims})
        return
    rows = [(finding.verdict, f"{finding.claim}. {finding.answer}") for finding in made.findings]
    print_table("Claims of the paper", ("verdict", "claim and numbers"), rows)
    out().print(f"written: {made.page}")
