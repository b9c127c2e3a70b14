"""Before N:M, inputs of layers are put into an order that suits it, where the layer before can be reordered along.

The user's model keeps its order: both networks of the run are copies then, with the same function as before.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from feta.calibration.copies import copied
from feta.calibration.links import Link, find_links, reorder_
from feta.calibration.model import call
from feta.engine.run import Run
from feta.layers import LayerView
from feta.patterns import NofM
from feta.solvers.reordering import exchanged_order

SAMPLES = 500  # about, that tell how large the inputs are


@torch.no_grad()
def reorder(run: Run, names: Iterable[str], pattern: NofM) -> dict[str, str]:
    """Reorder both networks of a run: for each layer with new places for its inputs, the layer before."""
    if run.recording is None or run.apart:
        return {}
    links, found = find_links(run.recording, run.layers), {}
    links = {name: links[name] for name in names if name in links and _divides(run.original, name, pattern.m)}
    squares = _mean_squares(run, links)
    orders = {name: _order(run.original, name, squares[name], pattern) for name in squares}
    moved = {name: order for name, order in orders.items() if not torch.equal(order, torch.arange(len(order)))}
    if moved:
        run.original = copied(run.original)
    for name, order in moved.items():
        for model in (run.original, run.result):
            reorder_(model, links[name], order.to(run.device))
        found[name] = links[name].before
    return found


def _divides(model: nn.Module, name: str, m: int) -> bool:
    channels = LayerView.of(model, name).weight.shape[1]
    return channels % m == 0 and channels > m


def _mean_squares(run: Run, links: dict[str, Link]) -> dict[str, Tensor]:
    """Of each input channel of each layer, in the original network."""
    if not links or run.fit is None:
        return {}
    sums: dict[str, list[Tensor]] = {name: [] for name in links}

    def look(name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(x := args[0], Tensor):
            channels = x if isinstance(module, nn.Linear) else x.movedim(-module.weight.ndim + 1, -1)  # type: ignore
            sums[name].append(channels.flatten(0, -2).double().square().sum(0).cpu())

    hooks = [run.original.get_submodule(name).register_forward_pre_hook(partial(look, name)) for name in links]
    try:
        for batch in run.fit.drawn(-(-run.fit.count // SAMPLES)).share(run.ranks):
            call(run.original, batch)
    finally:
        for hook in hooks:
            hook.remove()
    totals = {name: run.ranks.in_turn(sums[name]) for name in links}
    return {name: total.cpu() for name, total in totals.items() if total is not None}


def _order(model: nn.Module, name: str, squares: Tensor, pattern: NofM) -> Tensor:
    weight = LayerView.of(model, name).weight.detach().cpu().double()
    energy = weight.square().movedim(1, 0).flatten(1) * squares[:, None]
    return exchanged_order(energy, pattern.n, pattern.m)
