"""One fit of a network to the original's outputs: Adam under a cosine, judged on rows that are held out."""

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.inputs import Inputs, Merged, generator_of, size_of
from feta.calibration.model import call, clock, outputs_of
from feta.errors import ConfigError, ModelError
from feta.masks import ZeroHold
from feta.pages.told import MIXED
from feta.ranks import ALONE, Ranks
from feta.report import RefinePoint
from feta.tuning.draws import Draws, Original, Rows, own_part, targets
from feta.tuning.loop import TALK_EVERY, Loop
from feta.tuning.matching import Match
from feta.tuning.mixing import Mixing
from feta.tuning.recorder import repeats
from feta.tuning.stepping import in_halves, learning, rate_on
from feta.tuning.support import MovingSupport

LOOKS, APART = 40, 25  # looks at the held-out rows, but no more than one in so many steps
EVERY = 20  # steps between two choices of a moving support
BACK_AT = 1.2  # times the lowest loss, from which on the rate is too high
JUDGED, ENOUGH = 512, 400  # answers that a network is judged by, with mixtures; rows that do without
MOST = 128  # of them in a batch
TRIAL_TIME = 0.2  # of a time budget, after which no rate is tried any more
KEPT = 2**26  # entries of the original's outputs on held-out rows that are kept


class Judge:
    """The mean distance of a network from the original on rows that are held out.

    Of few rows mixtures are judged too: where the original is sure, twenty rows cannot tell two networks apart.
    """

    def __init__(self, held: Inputs, original: Original, match: Match, mixing: Mixing, ranks: Ranks = ALONE) -> None:
        self.original, self.match, self.ranks = original, match, ranks
        self.held: list[Any] = list(Merged(held))
        target = self._target(self.held[0])[0]
        answers = target.numel() // target.shape[-1] if target.ndim > 1 else len(target)
        enough = answers // len(target) * held.count >= ENOUGH
        wanted, every = JUDGED - answers // len(target) * held.count, replace(mixing, mix=1.0)
        self.classes = enough and match.kind == "kl" and target.ndim == 2
        self.mixed = bool(not enough and mixing.mix)
        if self.mixed:
            generator = generator_of(0, 0)
            pairs = Rows(list(self.held), original.device, original.dtype).pairs(min(wanted, MOST), generator)
            while wanted > 0:
                self.held.append(every(*next(pairs), generator))
                wanted -= size_of(self.held[-1])
        self.sizes = torch.tensor([size_of(batch) for batch in self.held], dtype=torch.float64)
        self.held = [own_part(batch, ranks) for batch in self.held]
        small = target.numel() * len(self.held) <= KEPT
        self.targets = [self._target(batch) if size_of(batch) else None for batch in self.held] if small else None

    @property
    def measure(self) -> str:
        """The match's kind, or "probabilities" for the differences of these; and whether mixtures are judged too."""
        return "probabilities" if self.classes else self.match.kind + MIXED * self.mixed

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> float:
        # Of each batch: the sum over what counts in it, and how much that is.
        sums = torch.zeros(len(self.held), 2, dtype=torch.float64, device=self.original.device)
        for index, batch in enumerate(self.held):
            if size_of(batch) == 0:
                continue
            target, keep = self._target(batch) if self.targets is None else self.targets[index]  # type: ignore[misc]
            output = outputs_of(call(model, batch, self.original.device, target.dtype))
            if output.shape != target.shape:
                shapes = f"{tuple(output.shape[1:])} and {tuple(target.shape[1:])}"
                raise ModelError(f"model and reference must give outputs of one shape, got {shapes}")
            far = self.match.differing(output, target) if self.classes else self.match(output, target, keep, T=1.0)
            weight = counted(target, keep)
            sums[index, 0], sums[index, 1] = far * weight, weight
        means = self.ranks.add_(sums).cpu()
        far_each = means[:, 0] / means[:, 1].clamp_min(1)
        # No distance is below zero, but the rounding of a divergence may be.
        return float(((far_each * self.sizes).sum() / self.sizes.sum()).clamp_min(0))

    def _target(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        found = targets(self.original.outputs, batch)
        target, keep = found if isinstance(found, tuple) else (found, None)
        if self.match.kind == "kl" and (target.ndim < 2 or target.shape[-1] == 1):
            raise ConfigError("loss must be 'mse' for a model with one output, got 'kl'")
        return target.clone(), None if keep is None else keep.to(target.device)


def counted(target: Tensor, keep: Tensor | None) -> Tensor | int:
    """What a mean over these targets is over: samples, or positions that are no padding."""
    return len(target) if keep is None else keep.sum()


def adam(model: nn.Module, device: torch.device, rate: float) -> torch.optim.Adam:
    """Adam on all parameters that learn but tables of embeddings: of those the rows show little."""
    tables = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    fitted = [parameter for parameter in learning(model) if id(parameter) not in tables]
    fused = device.type in ("cpu", "cuda")
    return torch.optim.Adam(fitted, rate_on(device, rate), fused=fused, capturable=device.type == "cuda")


@dataclass(kw_only=True)
class Fit(Loop):
    """A loop of one pass: all its steps."""

    batches: Draws
    held: Judge
    hold: ZeroHold
    support: MovingSupport | None = None
    passes: int = 1
    scale: float = 1.0  # of the learning rate

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pace = 0.0  # seconds of a step in a trial
        self.check_every = 1 / min(LOOKS, max(1, (self.length or 0) // APART))

    def recordable(self) -> bool:
        return super().recordable() or repeats(self.model, self.batches.some())

    def forward(self, x: Any) -> Any:
        with in_halves(self.model, self.ranks.device):
            return super().forward(x)

    def update(self, x: Any, y: Any) -> Tensor:
        if not self.ranks.many:
            return super().update(x, y)
        self.optimiser.zero_grad(set_to_none=True)
        loss, weight = torch.zeros((), device=self.ranks.device), torch.zeros((), device=self.ranks.device)
        if size_of(x):
            weight += counted(*y) if isinstance(y, tuple) else counted(y, None)
            loss = self.loss(self.forward(x), y) * weight
            loss.backward()
        mean = self._average_gradients(loss.detach(), weight)
        self.optimiser.step()
        return mean

    def _average_gradients(self, loss: Tensor, weight: Tensor) -> Tensor:
        """Gradients as those of the mean over all processes' rows, in one exchange; that mean."""
        fitted = [p for group in self.optimiser.param_groups for p in group["params"]]
        parts = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in fitted]
        flat = self.ranks.add_(torch.cat([*parts, loss.to(parts[0])[None], weight.to(parts[0])[None]]))
        flat = flat / flat[-1].clamp_min(1)
        for parameter, gradient in zip(fitted, flat.split([*(p.numel() for p in fitted), 2])[:-1], strict=True):
            parameter.grad = gradient.view_as(parameter)
        return flat[-2]

    def go(self) -> str:
        """Fit, and leave the network with the best weights."""
        stopped = self.look() or self.run()
        if self.support is not None and not self.support.settled:  # the time was up
            self.support.move(1.0, back=False)
            self.look()
        self.restore_best()
        return "steps" if stopped == "passes" else stopped

    def trial(self, within: float = math.inf) -> float | None:
        """Fit, and return the mean loss over the second half of the steps; inf where it was not finite.

        None where the time for trials was up before: so many seconds, or their part of the time there is.
        """
        device, half, cut = self.ranks.device, (self.length or 0) // 2, False
        total, began, since = torch.zeros((), device=device), clock(device), 0
        for batch in self.batches.over(0):
            if cut := self._spent() > TRIAL_TIME or self._tried(within):
                break
            if self.steps in (1, half):  # libraries are loaded, and at half the step is recorded too
                began, since = clock(device), self.steps
            self._set_rate(0.0)
            loss = self.step(batch.x, batch.y)
            total += loss * (self.steps >= half)
            self.steps += 1
            self.done += 1
        found = float(total)
        self.pace = self.ranks.most((clock(device) - began) / max(1, self.steps - since)) if self.steps else 0.0
        self.step = self.update  # frees a graph now, not whenever garbage is collected
        if cut:
            return None
        return found if math.isfinite(found) else math.inf

    def _tried(self, within: float) -> bool:
        """Whether so many seconds are over, the same in every process."""
        if math.isinf(within) or (self.ranks.many and self.steps % TALK_EVERY):
            return False
        return self.ranks.most(time.perf_counter() - self.started) > within

    def rate(self, first: float, over: float) -> float:
        return self.scale * first * (1 + math.cos(math.pi * over)) / 2

    def stepped(self) -> None:
        if self.support is not None and self.steps % EVERY == 0:
            self.support.move(self.over)

    def judge(self) -> float:
        loss = self.held(self.model)
        if not math.isfinite(loss):
            cure = self.cure if self.steps else "look for it in the data and the models"
            raise ModelError(f"refinement must keep a finite loss, got {loss}; {cure}")
        return -loss

    def after(self, seconds: float, passes: float, loss: float, score: float | None) -> tuple[Any, str | None]:
        held_out = -(score or 0.0)
        if self.support is not None and not self.support.settled:
            self.best, self.best_weights = -math.inf, None  # more is kept than may be
        elif held_out > BACK_AT * -self.best:
            self.scale /= 5
            self.restore_best()
            for state in self.optimiser.state.values():  # in place, for steps that are recorded
                for value in state.values():
                    value.zero_()
        return RefinePoint(seconds, self.steps, held_out), None
