"""Texts that are rewritten in part by the original itself: more text like its own, for one run over it.

    token at t   drawn from softmax(output at t - lag), for a share of the positions; every other one stays

lag is 1 for models that say the next token and 0 for those that say the token itself. Each token is drawn after the
words that stand before it, so that all are had at once, while text that a model goes on with takes a run for each.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from feta.calibration.inputs import Batch

KEY, MASK = "input_ids", "attention_mask"
KNOWN = 0.05  # share of the tokens that a model must say rightly


@dataclass(frozen=True)
class Rewriter:
    """Rewrites batches of tokens, or of dicts that hold them as `input_ids`."""

    lag: int

    def __call__(self, x: Batch, output: Tensor, share: float, generator: torch.Generator) -> Batch:
        tokens = _tokens(x)
        assert tokens is not None
        place, draw = (torch.rand(tokens.shape, generator=generator).to(output.device) for _ in range(2))
        chance = output.float().softmax(-1).cumsum(-1)
        # Against the last sum, which rounding leaves near one.
        drawn = torch.searchsorted(chance, (draw.unsqueeze(-1) * chance[..., -1:]).contiguous()).squeeze(-1)
        new = drawn.clamp_max(output.shape[-1] - 1).to(tokens.dtype).roll(self.lag, 1)
        take = (place < share) & (torch.arange(tokens.shape[1], device=output.device) >= self.lag)
        if isinstance(x, dict) and MASK in x:
            take &= x[MASK].to(output.device) != 0
        written = tokens.where(~take.to(tokens.device), new.to(tokens.device))
        return x | {KEY: written} if isinstance(x, dict) else written


@torch.no_grad()
def rewriter_of(outputs: Callable[[Batch], Tensor], x: Batch) -> Rewriter | None:
    """What rewrites samples like x; None where outputs are not scores of the tokens at their positions."""
    tokens = _tokens(x)
    if tokens is None or tokens.shape[1] < 2:
        return None
    found = outputs(x)
    if found.ndim != 3 or found.shape[:2] != tokens.shape or found.shape[2] <= int(tokens.max()):
        return None
    said, given = found.argmax(-1), tokens.to(found.device)
    right = [float((said[:, : said.shape[1] - lag] == given[:, lag:]).float().mean()) for lag in (0, 1)]
    return Rewriter(right.index(max(right))) if max(right) >= KNOWN else None


def _tokens(x: Batch) -> Tensor | None:
    """The tokens of a batch, (n, length)."""
    tokens = x.get(KEY) if isinstance(x, dict) else x
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.dtype == torch.bool:
        return None
    return None if tokens.is_floating_point() else tokens
