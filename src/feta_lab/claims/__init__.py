"""The paper's claims, each with a verdict computed from records alone.

Every claim has a file of its own. Its docstring states the rule: what is compared, by which statistic, against which
threshold and why. Its `judge(records)` returns a Finding: holds, does not hold, depends (on the network, on the
sparsity, or on more measurements), or not measured. No verdict is written by hand, and no rule says "holds" on data
in which there is nothing to find: tests/lab/test_claims.py has such data for each.

To add a claim, write a file with a `judge` and add a line to CLAIMS.
"""

from collections.abc import Callable, Sequence

from feta_lab.claims import (
    depth,
    dimension,
    dimension_predicts,
    exponential,
    feta_faster,
    feta_most_accurate,
    gains_dense,
    rivals_inconsistent,
    threshold_cheapest,
)
from feta_lab.claims.finding import Finding
from feta_lab.results import Record, Results, unretrained

__all__ = ["CLAIMS", "Finding", "judge_claims"]

Rule = Callable[[Sequence[Record]], Finding | None]
Select = Callable[[Results], list[Record]]


def _published(results: Results) -> list[Record]:
    """Figure 2, or the benchmarks where Figure 2 lacks the published solver."""
    figure = results.of("fig2")
    if any(record["method"] in feta_most_accurate.PUBLISHED for record in figure):
        return figure
    benchmarks = Results(tuple(source for source in results.sources if source.kind == "bench"))
    return unretrained(benchmarks, feta_most_accurate.PUBLISHED)


# In the paper's order: the rule, and the records it reads.
CLAIMS: tuple[tuple[Rule, Select], ...] = (
    (threshold_cheapest.judge, lambda r: r.of("table1")),
    (feta_most_accurate.judge, lambda r: unretrained(r)),
    (feta_most_accurate.judge_published, _published),
    (feta_faster.judge, lambda r: unretrained(r, ("feta", "lobs"), timed=True)),
    (rivals_inconsistent.judge, lambda r: unretrained(r, ("threshold", "corenet", "net-trim"))),
    (gains_dense.judge, lambda r: unretrained(r, ("threshold", "feta"))),
    (depth.judge, lambda r: r.of("fig3a", "fig3b")),
    (exponential.judge, lambda r: r.of("fig3a", "fig3b")),
    (dimension.judge, lambda r: r.of("fig3c")),
    (dimension_predicts.judge, lambda r: r.of("fig3a", "fig3b")),
)


def judge_claims(results: Results) -> tuple[Finding, ...]:
    """A finding per claim from the records of a results folder, as `feta_lab.results.gather` reads them.

    Only the finding on the published solver is left out, where that solver was not run.
    """
    findings = (rule(select(results)) for rule, select in CLAIMS)
    return tuple(finding for finding in findings if finding is not None)
