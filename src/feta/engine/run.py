"""The two networks of a run, the data, and where they live."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.chain import Chain, Segment, find_chain
from feta.calibration.copies import placed, shell
from feta.calibration.hold import Room
from feta.calibration.importance import output_importance
from feta.calibration.inputs import Batch, Inputs, Merged, marks_of, rows_of, size_of, tokens_of
from feta.calibration.lane import Lane
from feta.calibration.model import clock, device_of, float_dtype, place
from feta.calibration.notes import Recording
from feta.calibration.recording import record
from feta.calibration.trace import LayerTrace, trace_layers, untraced
from feta.engine.alike import check_same_data, check_same_model, check_whole, everyone, is_sharded
from feta.engine.judge import Judged
from feta.engine.offload import brought, fits
from feta.engine.settings import Settings, parse_memory
from feta.engine.shards import WHOLE, Shards
from feta.errors import DataError, warn
from feta.layers import prunable_names
from feta.ranks import ALONE, Ranks

EACH = 2 * 2**30  # bytes for each thing that waits, where nothing is said
FULL = 4 * 2**30  # bytes, from which on as many samples run at once as run well
IMPORTANCE_SAMPLES = 1000  # about
IMPORTANCE_TOKENS = 2**13

Check = Callable[[nn.Module, Batch], None]


@dataclass
class Run:
    """The original, the copy that is pruned, and the data both are run on.

    Both are worked on through shells: modules of our own around the very same parameters. Hooks and switches never
    touch the user's model, so that several threads may prune it.
    """

    original: nn.Module  # a shell
    pruned: nn.Module  # a shell around `result`
    result: nn.Module
    device: torch.device
    settings: Settings
    home: torch.device  # where both networks are; elsewhere than `device` if they are too large for it
    samples: Inputs | None = None  # all of them
    fit: Inputs | None = None
    held: Inputs | None = None
    layers: list[LayerTrace] = field(default_factory=list)
    marks: list[Tensor] = field(default_factory=list)  # of the samples that are read; equal ones have equal marks
    different: int = 0  # samples
    chain: Chain = field(default_factory=Chain)
    several: bool = False  # whether the model returns more than the one output that is compared
    recording: Recording | None = None
    ranks: Ranks = ALONE  # the processes that share the samples
    shards: Shards = WHOLE  # weights that are spread over the processes, and gathered segment by segment

    @classmethod
    def start(
        cls,
        model: nn.Module,
        data: Any,
        settings: Settings,
        device: Any = None,
        seed: int = 0,
        ranks: Ranks = ALONE,
        shards: Shards = WHOLE,
        check: Check | None = None,
    ) -> "Run":
        """A run on the model's own device, or on the one that is asked for.

        check: given the network and two samples, before it is traced.
        """
        check_whole(model)
        home = device_of(model)
        where = torch.device(device) if device is not None else home
        # Then one segment at a time goes there.
        apart = where != home and (bool(shards) or not fits(model, where))
        original = placed(model, home if apart else where) if not shards else model
        result = shards.copied(original)
        run = cls(shell(original), shell(result), result, where, settings, home if apart else where, shards=shards)
        run.ranks = replace(ranks, device=where)
        check_same_model(model, run.ranks, shards)
        if data is not None:
            size, most = settings.batch_size, settings.n_samples
            if is_sharded(data, settings.data) and ranks.many:
                most = None if most is None else -(-most // ranks.count)
                mine = Inputs(data, model=model, batch_size=size, n_samples=most, seed=seed)
                given = Inputs(run.room.hold(everyone(mine, run.ranks)), model=model)
            else:
                given = Inputs(data, model=model, batch_size=size, n_samples=most, seed=seed)
                check_same_data(given, run.ranks)
            run._split(given)
            run._trace(run.samples or given, check)
        else:
            run.layers = untraced(run.original)
        return run

    def judged(self) -> Judged:
        """What its layers are judged by."""
        assert self.fit is not None
        held = 0 if self.held is None else self.held.count
        tokens = 1 if self.held is None else max(1, tokens_of(next(iter(self.held))))
        count = self.fit.count + held
        return Judged(count, held * tokens, self.different)

    @property
    def apart(self) -> bool:
        """Whether only a segment at a time is where it is worked on."""
        return self.home != self.device or bool(self.shards)

    @property
    def room(self) -> Room:
        limit = parse_memory(self.settings.memory)
        # Samples, the states of two networks on two sets of samples, old and new ones at times, and a layer's rows.
        part = EACH if limit is None else limit / 8
        memory = {"memory": float("inf"), "disk": 0.0}.get(self.settings.cache, part)
        values = Room.values if limit is None else int(min(Room.values, max(2**16, limit / 256)))
        return Room(self.device, memory, values)

    def lanes(self) -> tuple[Lane, Lane]:
        """The samples to fit, and those to judge by; of few samples none are held out, and all do both."""
        assert self.fit is not None
        return tuple(  # type: ignore[return-value]
            Lane(self.chain, inputs.share(self.ranks), self.original, self.pruned, self.room)
            for inputs in (self.fit, self.held or self.fit)
        )

    @contextmanager
    def walking(self, lanes: Sequence[Lane], segment: Segment) -> Iterator[None]:
        """Inside, a segment of both networks is where it is worked on."""
        blocks = 0 <= segment.start < len(self.chain.blocks)
        for lane in lanes:
            lane.room = replace(lane.room, device=self.device if blocks or self.home == self.device else self.home)
        both = self.original, self.pruned
        with self.shards.gathered(tensor for model in both for tensor in self.chain.tensors(model, segment)):
            if self.home == self.device or not blocks:
                yield
            else:
                with brought(both, self.chain, segment, self.device):
                    yield

    def importance(self, layers: Sequence[LayerTrace], seed: int) -> dict[str, Tensor]:
        """Weights for the outputs of the layers; {} without layers or data."""
        # The square root: full weights starve the outputs that matter little, none spoil those that matter.
        return {name: (s / s.mean()).clamp_min(1e-4).sqrt() for name, s in self.sensitivity(layers, seed).items()}

    def sensitivity(self, layers: Sequence[LayerTrace], seed: int) -> dict[str, Tensor]:
        """How much the model's outputs change with those of the layers; {} without layers or data."""
        if not layers or self.fit is None or self.apart:
            return {}
        tokens = tokens_of(next(iter(self.fit)))  # a sample of text is many rows
        samples = min(IMPORTANCE_SAMPLES, max(8, IMPORTANCE_TOKENS // tokens)) if tokens else IMPORTANCE_SAMPLES
        spread = self.fit.drawn(max(1, self.fit.count // samples))
        # All activations are held for the way back: a quarter of what runs forwards, a sixteenth of long texts.
        batches = Merged(spread, 1 / 16 if tokens else 1 / 4, cut=True)
        try:
            probes = 1 if tokens else 8
            return output_importance(self.original, layers, batches, seed=seed, probes=probes, ranks=self.ranks)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            warn(f"outputs of layers count alike: the model could not be run backwards ({reason})")
            return {}

    def clock(self) -> float:
        """Seconds, read after the device has finished its work."""
        return clock(self.device)

    def _split(self, given: Inputs) -> None:
        """Samples to fit and to judge by, at random; read from the user's data once, unless nothing is to be kept."""
        first = next(iter(given))
        # A GPU would wait for launches: it runs more images at once. Texts are many rows each as it is.
        budget = 4.0 if self.device.type == "cuda" and not tokens_of(first) else 1.0
        if (limit := parse_memory(self.settings.memory)) is not None:
            budget = budget * min(1.0, max(1 / 16, limit / FULL))
        batches = self._marked(_finite(given if self.settings.batch_size else Merged(given, budget, cut=budget < 1)))
        kept = given if self.settings.cache == "replay" else Inputs(self.room.hold(batches), model=self.original)
        self.samples = kept
        marks = torch.cat(self.marks or [marks_of(batch) for batch in kept])
        self.marks, self.different = [], len(marks.unique())
        self.fit, self.held = kept.split(marks)

    def _marked(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches; of the samples it is noted which are equal."""
        for batch in batches:
            self.marks.append(marks_of(batch))
            yield batch

    def _trace(self, given: Inputs, check: Check | None = None) -> None:
        """What the model does with two samples; with more, where they do not reach every layer."""
        first = next(batch for batch in given if size_of(batch))
        batch = place(rows_of(first, slice(2)), self.home, float_dtype(self.original))
        with self.shards.on_use():
            if check is not None:
                check(self.original, batch)
            recording = record(self.original, batch)
            self.layers = trace_layers(recording)
            if size_of(first) > 2 and len(self.layers) < len(prunable_names(self.original)):
                recording = record(self.original, first)
                self.layers = trace_layers(recording)
        self.recording = recording
        # A head beside the output that is compared would pay for a fit to that one, whatever they are called.
        self.several = recording.several or sum(layer.leaves for layer in self.layers) > 1
        if self.settings.cache != "replay":
            self.chain = find_chain(recording, self.layers, batch, self._around)

    def _around(self, chain: Chain, segment: Segment | None) -> AbstractContextManager[Any]:
        """Inside, the original has the weights of a segment, or, on a batch that all processes run, of all."""
        if segment is None:
            return self.shards.on_use()
        return self.shards.gathered(chain.tensors(self.original, segment)) if self.shards else nullcontext()


def _finite(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches, looked at: what is wrong with one of them would be found again in every layer."""
    start, first = 0, None
    for batch in batches:
        if isinstance(batch, Tensor):
            kind = f"{'floats' if batch.is_floating_point() else 'whole numbers'} of {batch.ndim} dimensions"
            first = first or kind
            if kind != first:
                got = f"{first}, then {kind}; of (inputs, labels) pass the inputs alone"
                raise DataError(f"data must be batches of one kind, got {got}")
        for part in batch.values() if isinstance(batch, dict) else [batch]:
            if not isinstance(part, Tensor) or not part.is_floating_point() or bool(torch.isfinite(part.sum())):
                continue
            if len(bad := (~torch.isfinite(part)).nonzero()):  # of large numbers only the sum is not
                got = f"{len(bad)} NaN or infinite values, the first in sample {start + int(bad[0, :1].sum())}"
                raise DataError(f"data must be finite, got {got}; leave such samples out, or torch.nan_to_num(data)")
        start += size_of(batch)
        yield batch
