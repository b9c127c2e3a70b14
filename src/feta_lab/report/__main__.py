"""feta report for machines without the command line's libraries.

python -m feta_lab.report results -o site
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from feta.errors import FetaError
from feta_lab.report import build


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m feta_lab.report", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="folder, or the page's file; by default the results")
    given = parser.parse_args()
    try:
        report = build(given.results, given.output)
    except FetaError as error:
        sys.stderr.write(f"feta: {error}\n")
        return 1
    for finding in report.findings:
        sys.stdout.write(f"{finding.verdict}: {finding.claim}. {finding.answer}\n")
    for one in report.passed_over:
        sys.stderr.write(f"{one}\n")
    if report.note:
        sys.stderr.write(f"{report.note}\n")
    sys.stdout.write(f"written: {report.page}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
