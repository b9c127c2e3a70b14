"""Cholesky factors and least-squares refits on a Gram matrix: of a dense layer, or of each column on its support.

    V_j = argmin  v' H v - 2 C_j' v + r ||v - T_j||^2    over v with supp(v) in S_j
        : (H + r I)_SS v_S = (C_j + r T_j)_S

H (d, d) is a Gram matrix, C (d, d_out) its cross terms with any targets, T (d, d_out) where the ridge pulls to: the
trained weights, so that inputs the data says nothing about keep what training gave them. The mask (d_in, d_out) holds
the supports S_j. Rows of H beyond it, the bias, are in every support and outside the ridge.

Columns of about the same support size are gathered, scaled to a unit diagonal (so that one tolerance for pivots
fits every input), padded with the identity and factored together, in batches that a CPU's cache can hold. H may be
singular, with dead or collinear inputs: damping then grows tenfold until a factor exists, and is always reported.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from feta.calibration.statistics import cross, gram
from feta.errors import ConfigError, ModelError, check_range
from feta.problem import LayerProblem, LayerSolution, Status
from feta.ranks import ALONE, Ranks

LADDER = (1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # of the unit diagonal


@dataclass(frozen=True)
class Factor:
    """L with L L' = H + damping * I, and what it took to get it."""

    L: Tensor
    damping: float  # what was added to the diagonal
    status: Status

    def solve(self, C: Tensor) -> Tensor:
        """(H + damping I)^-1 C."""
        return torch.cholesky_solve(C.to(self.L.dtype), self.L)

    def inverse(self) -> Tensor:
        return torch.cholesky_inverse(self.L)


def factor(H: Tensor, relative_damping: float = 0.0) -> Factor:
    """The float64 factor of H + damping I; the damping, relative to H's mean diagonal, climbs until one exists."""
    H = H.double()
    scale, relative = float(H.diagonal().mean()) or 1.0, relative_damping
    for step in range(12):
        if step > 0:
            relative = max(relative * 10, 1e-12)
        shifted = H.clone()
        shifted.diagonal().add_(relative * scale)
        L, info = torch.linalg.cholesky_ex(shifted)
        if int(info) == 0 and bool(torch.isfinite(L.sum())):
            return Factor(L, relative * scale, Status.OK if step == 0 else Status.DAMPED)
    raise ModelError(f"a {len(H)} x {len(H)} Gram matrix has no Cholesky factor even with damping {relative:g}")


@dataclass(frozen=True)
class Refit:
    """The refitted columns, and what it took to get them."""

    V: Tensor  # (d, d_out) float64, zero outside the supports
    status: Status = Status.OK
    damping: float = 0.0  # the most that the ladder added, relative to the diagonal
    steps: int = 0  # of conjugate gradients; none where columns were factored
    error: float | None = None  # of the layer, where conjugate gradients measured it


def masked_refit(
    H: Tensor, C: Tensor, mask: Tensor, *, ridge: float = 0.0, toward: Tensor | None = None, ranks: Ranks = ALONE
) -> Refit:
    """The least-squares optimum of every column on its support.

    ridge: relative to the mean of H's diagonal over the mask's rows; pulls to `toward` (d, d_out), or to zero.
    ranks: processes that have the same arguments, and share the columns in batches.

    Raises a ConfigError for shapes that do not fit, and a ModelError where no factor exists.
    """
    if H.shape != (len(H), len(H)) or mask.ndim != 2 or len(mask) > len(H) or mask.dtype != torch.bool:
        got = f"H {tuple(H.shape)}, mask {tuple(mask.shape)} {mask.dtype}"
        raise ConfigError(f"masked_refit must have H (d, d) and mask (<= d, d_out) bool, got {got}")
    check_range("masked_refit", ">= 0", ridge=ridge)
    H, (d_in, d_out) = H.double(), mask.shape
    for label, tensor in (("C", C), ("toward", toward)):
        if tensor is not None and tensor.shape != (len(H), d_out):
            raise ConfigError(f"masked_refit.{label} must have shape {len(H), d_out}, got {tuple(tensor.shape)}")
    # One row past the end, where padding points: scale 0, so that nothing comes of it.
    added = H.new_zeros(len(H) + 1)
    added[:d_in] = ridge * H.diagonal()[:d_in].mean()
    diagonal = torch.cat([H.diagonal(), H.new_zeros(1)]) + added
    dead = diagonal <= 0  # an input that is always zero has an empty equation
    scale = diagonal.where(~dead, 1).rsqrt()
    dead[-1], scale[-1] = False, 0
    support = torch.cat([mask, mask.new_ones(len(H) - d_in, d_out)]).t().contiguous()
    V = H.new_zeros(len(H) + 1, d_out)
    left = support.any(1).nonzero()[:, 0]  # an empty support needs no factor: its V is zero
    worst = 0.0
    for damping in (0.0, *LADDER):
        failed = mask.new_zeros(d_out, dtype=torch.int32)
        for number, (batch, index) in enumerate(_batches(support, left, H)):
            if number % ranks.count != ranks.rank:
                continue
            L, good = _factors(H, scale, index, damping)
            columns, rows = batch[:, None], index
            if not bool(good.all()):  # asked once: on a GPU each question waits for all that was launched
                failed[batch[~good]] = 1
                columns, rows, L = batch[good, None], index[good], L[good]
            inside = rows.clamp_max(len(H) - 1), columns
            pull = H.new_zeros(()) if toward is None else toward[inside].double()
            here = scale[rows]
            b = (C[inside].double() + added[rows] * pull) * here
            # Nothing is known of a dead input's weight: it stays where the ridge would pull it to.
            b = torch.where(dead[rows], pull, b)
            if damping:
                b += damping * torch.where(here > 0, pull / here, 0)
            x = torch.cholesky_solve(b[:, :, None], L)[:, :, 0]
            V[rows, columns] = x * here
            if len(columns):
                worst = damping
        left = ranks.add_(failed).nonzero()[:, 0]
        if len(left) == 0:
            worst = ranks.most(worst)
            return Refit(ranks.add_(V[:-1].contiguous()), Status.DAMPED if worst else Status.OK, worst)
    got = f"{len(left)} without one even with {LADDER[-1]:g} of the diagonal added"
    raise ModelError(f"masked_refit must find a Cholesky factor for every column, got {got}")


def _batches(support: Tensor, columns: Tensor, H: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Columns (b,) of about one size, and their supports (b, width) filled up with the index past the end."""
    # On a CPU an eighth of H's own bytes at the most: a few batches are alive at once.
    entries = (min(2**22, max(2**18, H.numel())) if H.device.type == "cpu" else 2**30) // 8
    sizes = support[columns].sum(1)
    order = sizes.argsort(descending=True, stable=True)
    columns, widths = columns[order], sizes[order].tolist()
    # A GPU is through with small systems sooner than with launching several batches of them.
    together = H.device.type != "cpu" and sum(widths[:1]) ** 3 * len(widths) <= 2**33
    start = 0
    while start < len(widths):
        width, stop = widths[start], start + 1
        last = start + max(1, entries // width**2)
        # Padding to 1.25 times the size costs at most twice the work; small systems cost next to none.
        while stop < min(last, len(widths)) and (together or 1.25 * widths[stop] >= width or width <= 32):
            stop += 1
        batch = columns[start:stop]
        index = torch.full((len(batch), width), len(H), device=H.device)
        which, row = support[batch].nonzero(as_tuple=True)
        index[which, (support[batch].cumsum(1) - 1)[which, row]] = row
        yield batch, index
        start = stop


def _factors(H: Tensor, scale: Tensor, index: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """L (b, p, p) of the gathered and scaled systems, and which of them can be trusted."""
    inside = index.clamp_max(len(H) - 1)
    systems = H[inside[:, :, None], inside[:, None, :]]  # scaled once gathered, without a copy of H
    systems.mul_(scale[index][:, :, None]).mul_(scale[index][:, None, :])
    systems.diagonal(dim1=1, dim2=2).fill_(1 + damping)
    L, info = torch.linalg.cholesky_ex(systems)
    pivots = L.diagonal(dim1=1, dim2=2).amin(1).square()
    # Below this a pivot of the unit diagonal is made of rounding errors, whatever its sign.
    return L, (info == 0) & (pivots > torch.finfo(L.dtype).eps * index.shape[1])


def refit_dense(problem: LayerProblem, ridge: float = 1e-4) -> LayerSolution:
    """The dense layer that best gives the original outputs from the inputs it now receives.

    ridge: relative to the mean of H's diagonal; pulls to the trained weights.
    """
    with_bias = problem.bias is not None
    solved = factor(gram(problem.rows, with_bias=with_bias).H, ridge)
    C = cross(problem.rows, lambda A, B: B, with_bias=with_bias)
    return problem.solved(solved.solve(C + solved.damping * problem.trained.double()), solved.status)


def projected_cg(
    product: Callable[[Tensor], Tensor],
    diagonal: Tensor,
    C: Tensor,
    V: Tensor,
    mask: Tensor,
    iterations: int,
    sums: Callable[[Tensor], Tensor] = lambda X: X.sum(-2, keepdim=True),
) -> Tensor:
    """Steps of conjugate gradients from V for H V = C on the mask, where a factor would cost too much.

    H is known by its products and its diagonal (…, d), which preconditions them; V, C and mask are (…, d, d_out).

    sums: of each column.
    """
    weights = diagonal.where(diagonal > 0, 1)[..., None]
    residual = (C - product(V)).where(mask, 0)
    direction = residual / weights
    energy = sums(residual * direction)
    for _ in range(iterations):
        image = product(direction).where(mask, 0)
        curvature = sums(direction * image)
        step = (energy / curvature).where(curvature > 0, 0)  # a column that has arrived stays
        V = V + step * direction
        residual = residual - step * image
        scaled = residual / weights
        before, energy = energy, sums(residual * scaled)
        direction = scaled + (energy / before).where(before > 0, 0) * direction
    return V
