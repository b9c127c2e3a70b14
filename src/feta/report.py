"""What a pruning run reports: per layer and in total, as data and as a readable table."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from feta.pages import notebook
from feta.pages.told import HEADER as HEADER
from feta.pages.told import UNSEEN, errors_said, measure_of, measure_said
from feta.pages.told import layer_row as layer_row
from feta.pages.words import agreed, amount, counted, in_words, significant, some
from feta.problem import Activation, Status

SPARED = READS_INPUT, GIVES_OUTPUTS = "it reads the model's input", "its outputs are the model's"  # by default
FAR, SAME = 0.7, 0.8  # a relative error of the outputs, and a share of equal answers, that say a network is spoilt
CONSTANT = 0.9  # the error where answers are equal, but little else is said than by the mean of all outputs


@dataclass(frozen=True)
class LayerReport:
    """One pruned layer."""

    name: str  # as in `named_modules`
    shape: tuple[int, ...]  # of the layer's weight, as PyTorch stores it
    nonzeros: int  # that stayed
    sparsity: float  # reached
    relative_error: float | None  # ||rho(A U) - B|| / ||B|| over held-out samples, or fitted ones; None without data
    seconds: float  # of its solve and of judging it; the runs of the network before it are in the report's `parts`
    status: str = Status.OK.value  # how the solve went, a value of feta.Status
    message: str = ""  # what there is to say about it
    stats: dict[str, Any] = field(default_factory=dict)  # numbers of the solver
    activation: str = Activation.RELU.value  # what the layer was fitted for
    positions: float = 1.0  # rows that a sample gives: how often each weight is used for it
    pattern: str | None = None  # which weights stay together, "2:4"; None: any
    pruned_error: float | None = None  # as it was when a fit of the whole network left it behind


class Skipped(NamedTuple):
    """A module whose weights were left as they are."""

    name: str  # of the module
    kind: str  # its class
    weights: int  # 0 where they are counted under another name
    reason: str  # why it was left


@dataclass(frozen=True)
class Size:
    """A whole model: its parameters, the multiply-adds of its layers for one sample, and the bytes of its file."""

    parameters: int  # of the whole model
    nonzeros: int  # of the whole model
    multiply_adds: int | None  # of weights that are not zero, in layers that can be pruned; None without data
    bytes: int  # as values and a bit mask, which is quickly told; `feta.save` writes less


@dataclass(frozen=True)
class Held:
    """The pruned model beside the original, on samples that nothing was fitted to."""

    samples: int
    # ||its outputs - the original's|| / ||the original's - their mean over the samples||, of scores without what all
    # of a sample's have in common, which no answer depends on; None: not finite
    error: float | None
    agreement: float | None  # share of samples with the same largest output; None: outputs are no scores of classes

    @property
    def far(self) -> bool:
        """Whether the two networks have little in common any more."""
        if self.error is None or self.agreement is None:
            return self.error is None or self.error > FAR
        return self.agreement < SAME or self.error > CONSTANT

    def __str__(self) -> str:
        same = "" if self.agreement is None else f"the same answer for {agreed(self.samples, self.agreement)}, "
        far = (
            "outputs that are not finite" if self.error is None else f"a relative error of {significant(self.error)}"
        )
        return f"beside the original, on {counted(self.samples, 'held-out sample')}: {same}{far}"


class Reported:
    """A result that shows itself as its report does."""

    report: Any

    def __repr__(self) -> str:
        return repr(self.report)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()  # type: ignore[no-any-return]


class RefinePoint(NamedTuple):
    """The loss on held-out rows after some steps."""

    seconds: float
    steps: int
    loss: float


@dataclass(frozen=True)
class RefineReport:
    """Refinement without labels: how near the outputs came to the original's, on rows it did not fit."""

    seconds: float  # all that was waited for
    steps: int  # that were taken
    loss_before: float  # on held-out rows
    loss_after: float  # of the weights that were kept
    history: tuple[RefinePoint, ...]  # (seconds, steps, loss) of each look at them
    stopped: Literal["steps", "seconds"]  # why it ended
    loss: str  # which one
    device: str  # where it ran
    seed: int  # of every draw
    learning_rate: float  # at the start
    support: str  # "fixed", "moving" or "free"
    measure: str = ""  # of the losses here: `loss`, or "probabilities", their differences; "+mixtures": of these too

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "history": [list(point) for point in self.history]}

    def __repr__(self) -> str:
        before, after = significant(self.loss_before), significant(self.loss_after)
        fell = f"{measure_said(self.measure or self.loss)} of the outputs {before} → {after}"
        limit = ", its time limit" if self.stopped == "seconds" else ""
        return f"refined: {fell}, {self.steps} steps, {self.seconds:.2f} s{limit}"

    def _repr_html_(self) -> str:
        return notebook.lines(repr(self))


class RetrainPoint(NamedTuple):
    """A look at the validation data."""

    seconds: float
    epoch: float
    accuracy: float | None  # percent; None without validation data


@dataclass(frozen=True)
class RetrainReport:
    """Retraining: what it cost and how far it came."""

    seconds: float  # everything that was waited for
    evaluation_seconds: float  # the part of it spent on validation data
    epochs: float  # passes over the rows, the last one perhaps in part
    recovered: bool | None  # None without a goal
    goal: float | None  # validation accuracy to come back to
    tolerance: float  # points below the goal that will do
    start: float | None  # validation accuracy before the first step
    accuracy: float | None  # of the weights that were kept
    history: tuple[RetrainPoint, ...]  # (seconds, epoch, accuracy) of each look at it
    stopped: Literal["recovered", "saturated", "epochs", "seconds"]  # why it ended
    device: str  # where it ran
    seed: int  # of every draw

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "history": [list(point) for point in self.history]}

    def __repr__(self) -> str:
        score = "" if self.accuracy is None else f"{self.start:.2f} → {self.accuracy:.2f}, "
        goal = "" if self.goal is None else f"goal {self.goal:.2f}, "
        return f"retrained: {score}{goal}{self.epochs:.2f} epochs, {self.seconds:.2f} s ({self.stopped})"

    def _repr_html_(self) -> str:
        return notebook.lines(repr(self))


@dataclass(frozen=True)
class AllocationReport:
    """How the budget was spread over the layers."""

    name: str  # "per-layer" where the caller gave a share for each
    seconds: float  # of finding the shares
    kept: dict[str, float]  # the share of each layer's weights that may stay


@dataclass(frozen=True)
class StageReport:
    """One stage of a recipe: how far its network's outputs are from the original's on rows that no stage fitted."""

    name: str  # what was done
    seconds: float  # of this stage alone
    distance: float | None  # None where it could not be measured
    kept: bool  # whether the result is this stage's
    message: str = ""  # why it failed or was left out
    measure: str = ""  # of the distance, where it could be measured

    def __str__(self) -> str:
        far = "" if self.distance is None else f", {significant(self.distance)} from the original"
        said = f" ({self.message})" if self.message else ""
        return f"{'→' if self.kept else ' '} {self.name}{far}, {self.seconds:.2f} s{said}"


@dataclass(frozen=True)
class PruneReport:
    """A whole run; `to_json` gives every field, `repr` the table."""

    method: str  # by its name
    target_sparsity: float | dict[str, float]  # asked for
    sparsity: float  # reached, over the pruned layers
    seconds: float  # all that was waited for
    device: str  # where it ran
    seed: int  # of every draw
    options: dict[str, Any]  # of the method
    layers: tuple[LayerReport, ...]  # one for each pruned layer
    compensated: dict[str, str] = field(default_factory=dict)  # refitted layer -> status
    allocation: AllocationReport | None = None  # how the budget was shared over layers
    refinement: RefineReport | None = None  # of the fit whose network is the result
    before: Size | None = None  # of the whole model
    after: Size | None = None  # with the zeros
    skipped: tuple[Skipped, ...] = ()  # modules whose weights were left as they are
    segments: int = 1  # that the network was cut into; 1: it ran as a whole for each layer
    batchnorm: str = ""  # what was done about batch-norms, and why
    parts: dict[str, float] = field(default_factory=dict)  # of the seconds, by stage; they add up to them
    effort: str | None = None  # None where the pieces were named one by one
    stages: tuple[StageReport, ...] = ()  # of an effort, in order
    pattern: str | None = None  # which weights stay together, "2:4"; None: any
    reordered: dict[str, str] = field(default_factory=dict)  # layer with new places for its inputs -> the one before
    held: Held | None = None  # None where no samples were held out
    judged_by: int | None = None  # held-out samples that layers are judged by; 0: the fitted ones are; None: no data

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"skipped": tuple(entry._asdict() for entry in self.skipped)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False)

    def __repr__(self) -> str:
        rows = [HEADER, *(layer_row(asdict(layer)) for layer in self.layers)]
        if (more := len(rows) - ROWS) > 1:
            rows[ROWS - 4 : -4] = [(f"… {more} more: report.layers", *[""] * (len(HEADER) - 1))]
        widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
        table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*self.headline(), *table, *self.notes()])

    def _repr_html_(self) -> str:
        return notebook.run_fragment(self.to_dict(), self.headline()[0], self.notes())

    def headline(self) -> list[str]:
        """The run in one or two lines."""
        share = f"{100 * self.sparsity:.2f} % of the weights of {counted(len(self.layers), 'layer')} zero"
        pattern = "" if self.pattern is None else f", pattern {self.pattern}"
        lines = [f"{self.method}{pattern}: {share}, {self.seconds:.2f} s"]
        if self.before is not None and self.after is not None:
            one, other = self.before, self.after
            zeros = 100 * (1 - other.nonzeros / max(other.parameters, 1))
            adds = ""
            if one.multiply_adds is not None and other.multiply_adds is not None:
                adds = f", {amount(one.multiply_adds).strip()} → {amount(other.multiply_adds).strip()} {ADDS}"
            lines.append(
                f"whole model: {zeros:.2f} % of {amount(one.parameters).strip()} parameters zero{adds}, "
                f"{amount(one.bytes)}B → {amount(other.bytes)}B as values and bit masks"
            )
        lines += [] if self.held is None else [str(self.held)]
        return lines

    def notes(self) -> list[str]:
        """What there is to say beside the table."""
        found = self.to_dict()
        notes = [f"errors: {about}"] if (about := errors_said(found)) else []
        notes += [UNSEEN] if self.held is not None else []
        asked = self.target_sparsity if self.pattern is None else None  # a pattern rounds shares by more
        if isinstance(asked, float) and self.sparsity > asked + MORE:
            notes.append(
                f"{100 * asked:g} % zeros were asked for: the others came of themselves, as of inputs "
                "that are always zero, or of a network that was pruned before"
            )
        said: dict[str, list[LayerReport]] = {}
        for layer in self.layers:
            said.setdefault(layer.message, []).append(layer)
        messages = [message for message in said if message]
        notes += [f"{some([one.name for one in said[text]])}: {in_words(text)}" for text in messages[:SHOWN]]
        if more := [layer for text in messages[SHOWN:] for layer in said[text]]:
            rest = ", ".join(f"{count} {status}" for status, count in Counter(one.status for one in more).items())
            notes.append(f"{len(more)} more layers have something to say ({rest}): see report.layers")
        notes += [f"{name}: its refit ended as {end}" for name, end in self.compensated.items() if end != "ok"]
        notes += self._left()
        if self.segments == 1 and len(self.layers) > 8:
            notes.append("the network could not be cut into segments: each layer took a run of all of it")
        if self.reordered:
            names = some(list(self.reordered))
            notes.append(f"inputs put in another order, with the outputs of the layers before: {names}")
        notes += [self.batchnorm] if self.batchnorm else []
        if self.stages:
            by = f", by {measure}" if (measure := measure_of(found)) else ""
            known = any(stage.distance is not None for stage in self.stages)
            far = f"; how far the outputs are from the original's{by}" if known else ""
            notes.append(f"stages, the arrow at the one that is kept{far}:")
            return notes + [str(stage) for stage in self.stages]
        return notes + ([repr(self.refinement)] if self.refinement is not None else [])

    def _left(self) -> list[str]:
        """What was left as it is, a line for each reason."""
        total = self.before.parameters if self.before is not None else 0
        by_reason: dict[str, list[Skipped]] = {}
        for entry in self.skipped:
            by_reason.setdefault(entry.reason, []).append(entry)
        notes = []
        for reason, entries in by_reason.items():
            names = some([entry.name or entry.kind for entry in entries])
            share = sum(entry.weights for entry in entries) / total if total else 0.0
            said = f" ({100 * share:.1f} % of all)" if total else ""
            # Shares by layer prune what they name, and nothing else.
            could = reason in SPARED and share >= MUCH and isinstance(self.target_sparsity, float)
            cure = "; layers='*' prunes that too" if could else ""
            notes.append(f"left as it is: {names}{said}: {reason}{cure}")
        return notes


ADDS = "multiply-adds in prunable layers"  # recurrent layers and products of attention are not in it
SHOWN = 5  # messages of layers that are printed
MORE = 0.002  # zeros than asked for, as a share, from which on it is said
MUCH = 0.1  # of all weights in spared layers, from which on it is said how they are pruned too
ROWS = 24  # of the printed table
