"""What is done once a network is cut: it is checked, judged, fitted as a whole, and timed."""

import time
from collections.abc import Sequence

import torch
from torch import nn

from feta.calibration.inputs import Batch
from feta.calibration.model import call, clock, device_of, evaluating, outputs_of
from feta.engine.run import Run
from feta.errors import ModelError
from feta.report import RefineReport, StageReport
from feta.structured.groups import same
from feta.tuning.bench import distance_of
from feta.tuning.refine import fitted
from feta.tuning.refinement import Refinement

REPEATS, LONGEST = 15, 2.0  # runs of each network that are timed, and seconds after which no more are


@torch.no_grad()
def check_cut(run: Run, small: nn.Module, batch: Batch) -> None:
    """The smaller network must do what the refitted one does. Raises ModelError."""
    with evaluating(small):
        found, expected = (outputs_of(call(network, batch)) for network in (small, run.pruned))
    if not same(found, expected):
        far = float((found.double() - expected.double()).norm() / expected.double().norm())
        raise ModelError(f"model must be the same without what nothing reads, got outputs that differ by {far:.2g}")


def judged(run: Run, small: nn.Module, seconds: float) -> StageReport:
    """The first stage: how far the refitted network is from the original."""
    if run.held is None or run.held.count < 2 or run.several:
        why = "the model returns several outputs" if run.several else "too few samples; give 20 or more"
        return StageReport("layer by layer", seconds, None, True, why)
    far = distance_of(small, run.original, run.held, run.device, run.settings.loss)
    return StageReport("layer by layer", seconds, far, True)


def improved(
    run: Run, small: nn.Module, how: Refinement, seed: int, before: StageReport
) -> tuple[nn.Module, RefineReport | None, tuple[StageReport, ...]]:
    """The smaller network fitted as a whole to the original's outputs, if held-out rows say that this helped."""
    if before.distance is None:
        return small, None, (before,)
    assert run.fit is not None
    assert run.held is not None
    done = fitted(small, run.original, (run.fit, run.held), how, {}, run.device, seed)
    report = done.report
    helped = report.loss_after < before.distance
    said = f"{report.steps} steps, rate {report.learning_rate:g}"
    after = StageReport("whole network fitted", report.seconds, report.loss_after, helped, said)
    first = StageReport(before.name, before.seconds, before.distance, not helped, before.message)
    return (done.model, report, (first, after)) if helped else (small, None, (first, after))


@torch.no_grad()
def milliseconds(networks: Sequence[nn.Module], batch: Batch) -> list[float]:
    """The least time of each network for a batch; they take turns, so that all meet the same machine."""
    spent: list[list[float]] = [[] for _ in networks]
    with evaluating(*networks):
        started = time.perf_counter()
        for _ in range(REPEATS):
            for network, times in zip(networks, spent, strict=True):
                before = clock(device_of(network))
                call(network, batch)
                times.append(1000 * (clock(device_of(network)) - before))
            if time.perf_counter() - started > LONGEST and len(spent[0]) > 2:
                break
    return [min(times) for times in spent]
