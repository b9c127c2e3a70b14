"""The paper's claims, each with a verdict computed from records alone.

A claim is a pure function of records that returns a Finding: holds, does not hold, depends (on the network or on
the sparsity), or not measured. No verdict is written by hand.
"""

from __future__ import annotations

from feta_lab.claims.accuracy import (
    PUBLISHED,
    feta_is_most_accurate,
    gains_are_larger_in_dense,
    published_feta,
    rivals_are_inconsistent,
)
from feta_lab.claims.depth import accuracy_falls_with_depth, loss_is_exponential
from feta_lab.claims.dimension import dimension_predicts_better, larger_k_is_less_robust
from feta_lab.claims.finding import Finding
from feta_lab.claims.retraining import threshold_is_cheapest
from feta_lab.claims.speed import feta_is_faster_than_lobs
from feta_lab.results import Results, unretrained

__all__ = ["Finding", "judge_claims"]


def judge_claims(results: Results) -> tuple[Finding, ...]:
    """All claims, in the paper's order."""
    layers = results.of("fig3a", "fig3b")
    benchmarks = Results(tuple(source for source in results.sources if source.kind == "bench"))
    published = published_feta(results.of("fig2")) or published_feta(unretrained(benchmarks, PUBLISHED)[0])
    return (
        threshold_is_cheapest(results.of("table1")),
        feta_is_most_accurate(unretrained(results)[0]),
        *([published] if published else []),
        feta_is_faster_than_lobs(unretrained(results, ("feta", "lobs"), timed=True)[0]),
        rivals_are_inconsistent(unretrained(results, ("threshold", "corenet", "net-trim"))[0]),
        gains_are_larger_in_dense(unretrained(results, ("threshold", "feta"))[0]),
        accuracy_falls_with_depth(layers),
        loss_is_exponential(layers),
        larger_k_is_less_robust(results.of("fig3c")),
        dimension_predicts_better(layers),
    )
