"""feta report: one page with verdicts, figures and tables from the records of experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from feta.cli.console import err, out, print_json, print_table
from feta.cli.options import Json


def report(
    results: Path,
    /,
    *,
    output: Annotated[
        Path | None,
        Parameter(name=("--output", "-o"), help="Folder, or the page's file (.html); by default the results folder."),
    ] = None,
    json: Json = False,
) -> None:
    """Make one self-contained page from the records under RESULTS, with figures and tables beside it.

    Parameters
    ----------
    results
        Folder with table1, fig2, fig3a, fig3b, fig3c and benchmarks below it, as far as they exist.
    """
    from dataclasses import asdict

    from feta_lab.page.report import build

    made = build(results, output)
    for one in made.passed_over:
        err().print(str(one))
    if json:
        claims = [
            {"key": f.key, "claim": f.claim, "verdict": f.verdict, "numbers": f.answer, "why": f.why}
            for f in made.findings
        ]
        answer = {
            "page": str(made.page),
            "figures": list(map(str, made.figures)),
            "tables": list(map(str, made.tables)),
            "records": made.sources,
            "passed_over": [asdict(one) for one in made.passed_over],
            "claims": claims,
        }
        print_json(answer)
        return
    rows = [(finding.verdict, f"{finding.claim}. {finding.answer}") for finding in made.findings]
    print_table("Claims of the paper", ("verdict", "claim and numbers"), rows)
    out().print(f"written: {made.page}")
