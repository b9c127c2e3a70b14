"""ExactOBS (OBC): minimise 1/2 (u - w)' H (u - w) for each output, with H = A' A + damping I.

The layer's removals are taken from the outputs whose next step costs least. U is the least-squares optimum on the
support that is left.

H^-1 is never copied per output: after t removals it is H^-1 - G' G with G (t, d_in) the eliminated rows, which takes
a sixth of the reading and writing of an update in place. A fitted bias is an input that is always 1 and never
removed: A is centred in H.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from feta.calibration.statistics import gram, ranks_of
from feta.errors import ConfigError, check_fields
from feta.problem import LayerProblem, LayerSolution, Needs, Status
from feta.solvers.refit import factor, masked_refit
from feta.sparsity import Sparsity, top_k_mask


@dataclass(frozen=True)
class ExactObs:
    """Remove each output's weights one by one with exact inverses, then choose over outputs by loss.

    Formula: q = argmin w_q² / [H⁻¹]_qq;  H⁻¹ ← H⁻¹ − H⁻¹[:, q] H⁻¹[q, :] / [H⁻¹]_qq
    Cost: one pass for H; d_in³ for each output, so for layers that are small enough.
    Source: Frantar and Alistarh 2022 (arXiv 2208.11580).

    damping: added to H's diagonal, as a share of its mean; the paper's 0.01.
    fit_bias: whether the bias is fitted along with every removal; the paper's layers have none.
    max_cost: d_out * d_in^3 beyond which a layer is refused; 1e10 take a CPU about a second.
    batch_bytes: memory of one batch of outputs. None: 8 MiB on a CPU, so that it stays in the cache, else 4 GiB.
    """

    name: ClassVar[str] = "exact-obs"
    needs: ClassVar[Needs] = Needs("few", shares=True)

    damping: float = 0.01
    fit_bias: bool = True
    max_cost: float = 2e13
    batch_bytes: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, ">= 0", "damping")
        check_fields(self, "> 0", "max_cost")
        check_fields(self, ">= 1", "batch_bytes")

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        (d_in, d_out), k = problem.W.shape, target.count(problem.W.numel())
        cost = d_out * float(d_in) ** 3
        if cost > self.max_cost:
            got = f"{cost:.1e} for {d_in} x {d_out}; raise max_cost, or use 'alps', which costs d_in^2 * d_out a step"
            most = f"at most max_cost {self.max_cost:.1e} for d_out * d_in^3"
            raise ConfigError(f"exact-obs must cost {most}, got {got}")
        W = (problem.trained if self.fit_bias else problem.W).double()
        found = gram(problem.rows, with_bias=len(W) > d_in)
        whole = found.H.clone()  # it is changed below
        H = inputs = whole[:d_in, :d_in]
        if found.with_bias:
            # The Schur complement of the bias: down-dating it is down-dating H~ with the bias always refitted.
            H = inputs - torch.outer(whole[-1, :d_in], whole[-1, :d_in]) / found.rows
        # Weights of inputs that never vary have no say the bias could not take over: they are the first to go.
        varies = (H.diagonal() > 1e-6 * inputs.diagonal())[:, None]
        start = W[:d_in].where(varies, 0)
        solved = factor(H.where(varies & varies.t(), 0), self.damping)  # what is left of the others is rounding
        inverse = solved.inverse()
        budget, ranks = self.batch_bytes or (2**23 if W.device.type == "cpu" else 2**32), ranks_of(problem.rows)
        order, losses = start.new_zeros(d_out, d_in, dtype=torch.long), start.new_zeros(d_out, d_in)
        # The eliminated rows have at most d_in^2 / 4 entries of 8 bytes for each output.
        for number, columns in enumerate(torch.arange(d_out).split(max(1, budget // (2 * d_in**2)))):
            if number % ranks.count == ranks.rank:
                order[columns], losses[columns] = removal_path(inverse, start[:, columns].t())
                problem.report("remove", outputs=float(columns[-1] + 1))
        mask = choose(ranks.add_(order), ranks.add_(losses), k)
        inputs.diagonal().add_(solved.damping)
        refit = masked_refit(whole, whole @ W, mask, ranks=ranks)
        status = Status.DAMPED if refit.status is Status.DAMPED else solved.status
        stats = {"damping": solved.damping, "refit_damping": refit.damping}
        return problem.solved(refit.V, status, stats=stats, target=target)


def removal_path(inverse: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """The greedy paths of some outputs W (b, d_in): inputs in order of removal, and what each step costs."""
    b, d_in = W.shape
    alive = torch.arange(d_in, device=W.device).expand(b, -1)  # (b, n) inputs not yet cut out
    W, diagonal = W.clone(), inverse.diagonal().repeat(b, 1)
    G, done = W.new_empty(b, 0, d_in), 0
    order, losses = torch.empty_like(W, dtype=torch.long), torch.empty_like(W)
    while done < d_in:
        steps = min(d_in - done, max(16, (d_in - done) // 8))
        G = torch.cat([G, G.new_zeros(b, steps, G.shape[2])], dim=1)
        gone = torch.zeros_like(alive, dtype=torch.bool)
        for t in range(done, done + steps):
            q = (W.square() / diagonal).masked_fill_(gone, torch.inf).argmin(1, keepdim=True)  # (b, 1)
            chosen = alive.gather(1, q)
            past = G[:, :t].gather(2, q[:, None, :].expand(-1, t, -1)).transpose(1, 2)  # (b, 1, t)
            row = inverse[chosen, alive] - (past @ G[:, :t]).squeeze(1)
            root = row.gather(1, q).clamp_min(torch.finfo(row.dtype).tiny).sqrt()
            row = row / root
            rate = W.gather(1, q) / root
            W -= rate * row
            diagonal -= row.square()
            G[:, t] = row
            gone.scatter_(1, q, True)
            order[:, t], losses[:, t] = chosen[:, 0], rate[:, 0].square() / 2
        done += steps
        stay = (~gone).nonzero()[:, 1].reshape(b, d_in - done)
        alive, W, diagonal = alive.gather(1, stay), W.gather(1, stay), diagonal.gather(1, stay)
        G = G.gather(2, stay[:, None, :].expand(-1, done, -1))
    return order, losses


def choose(order: Tensor, losses: Tensor, k: int) -> Tensor:
    """The mask (d_in, d_out) of the k weights that stay when the cheapest next steps are taken over all outputs."""
    # Taking the least of the outputs' next losses again and again is sorting by each path's running maximum.
    price = losses.cummax(1).values
    stays = top_k_mask(price.flip(0, 1), k).flip(0, 1)  # of equal ones the first go
    return torch.zeros_like(stays).scatter_(1, order, stays).t()
