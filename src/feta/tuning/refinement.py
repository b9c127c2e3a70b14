"""How to refine: the settings of `feta.refine`."""

from dataclasses import dataclass
from typing import Literal

from feta.errors import ConfigError, check_fields
from feta.gates import gated
from feta.patterns import parse_pattern
from feta.tuning.mixing import Mixing


@gated
@dataclass(frozen=True)
class Refinement:
    """How to refine: `feta.refine(…, Refinement(steps=5000))` or `feta.prune(…, refine=Refinement(steps=5000))`."""

    steps: int = 2000  # at the most; the learning rate falls to zero over them
    # "moving": zeros are chosen anew, as many in each layer; "free": as many in all layers together
    support: Literal["fixed", "moving", "free"] = "fixed"
    learning_rate: float | None = None  # of Adam, at the start; None: the best of a few short tries
    batch_size: int | None = None  # None: 100, or as many as run well
    loss: Literal["kl", "mse", "cosine"] | None = None  # None: by what the model returns
    mixing: bool | Mixing = True  # whether inputs are mixed, shifted and spliced; or in which shares
    seconds: float | None = None  # a time budget beside the steps
    pattern: str | None = None  # which weights stay together where the support moves, as for `feta.prune`

    def __post_init__(self) -> None:
        check_fields(self, "> 0 and finite", "steps", "learning_rate", "batch_size", "seconds")
        if parse_pattern(self.pattern, "Refinement.pattern") is not None and self.support == "free":
            raise ConfigError(f"Refinement.support must be 'moving' with a pattern, got 'free' and '{self.pattern}'")
