"""Networks as odd as they come, drawn by Hypothesis, against pruning each of their layers by hand.

The hand works in float64 with plain hooks on whole networks: layers in order of execution, inputs from the network
pruned so far, outputs of the original, unfolding by convolution with one-hot kernels, attention by its formula.
"""

import copy
import math
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import feta
from feta import LayerProblem, LayerSolution, Needs, Settings, Sparsity
from feta.calibration.inputs import places_of
from feta.sparsity import top_k_mask
from odd_networks import CONVOLUTIONS, Case, cases, picked, run

METHODS = ["feta", "alps", "threshold"]


# Pruning by hand


def fit(W: Tensor, bias: Tensor | None, A: Tensor, B: Tensor, keep: int) -> tuple[Tensor, Tensor | None]:
    """Keep the largest |w| ||a||, then least squares with a small ridge, output by output, the bias as it is."""
    mask = top_k_mask(W.abs() * A.norm(dim=0)[:, None], keep)
    U, T = torch.zeros_like(W), B if bias is None else B - bias
    for j in range(W.shape[1]):
        rows = mask[:, j].nonzero()[:, 0]
        H = A[:, rows].T @ A[:, rows] + torch.eye(len(rows), dtype=W.dtype) * (1e-2 * len(A))
        U[rows, j] = torch.linalg.solve(H, A[:, rows].T @ T[:, j])
    return U.where(~mask | (U != 0), W), bias  # an input that is never on leaves its weights as they are


@dataclass(frozen=True)
class Fitting:
    """The same as a method of feta; or one that looks through batch-norms and shortcuts."""

    name: ClassVar[str] = "fitting"

    through: bool = False

    @property
    def needs(self) -> Needs:
        return Needs(through=self.through)

    def prune(self, problem: LayerProblem, target: Sparsity) -> LayerSolution:
        A, B = (torch.cat(parts) for parts in zip(*problem.rows.chunks(), strict=True))
        if self.through:
            B = torch.cat([Z if R is None else Z - R for _, Z, R in problem.rows.rows()])
        return LayerSolution(*fit(problem.W, problem.bias, A, B, target.count(problem.W.numel())))


Calls = dict[str, list[tuple[Tensor, Tensor]]]  # by layer: inputs and outputs of every call, a row for each position


def captured(model: nn.Module, batch: Any) -> Calls:
    """A and Z (rows, …) of every group of every call of every layer, in order of execution."""
    calls: Calls = {}
    owners = {id(p): name for name, p in reversed(list(model.named_parameters()))}

    def note(weight: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> None:
        calls.setdefault(owners[id(weight)], []).extend(pairs)

    def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if isinstance(module, nn.MultiheadAttention):
            x, z = (
                (args[0], output[0]) if module.batch_first else (args[0].transpose(0, 1), output[0].transpose(0, 1))
            )
            note(module.in_proj_weight, [(x, F.linear(x, module.in_proj_weight, module.in_proj_bias))])
            note(module.out_proj.weight, [(mixed(module, x, kwargs["key_padding_mask"]), z)])
        elif isinstance(module, nn.Linear):
            note(module.weight, [(inputs[module].pop(), output.clone())])
        else:
            note(module.weight, unfolded(module, inputs[module].pop(), output))

    inputs: dict[nn.Module, list[Tensor]] = {}
    kinds = (nn.Linear, nn.MultiheadAttention, *CONVOLUTIONS.values())
    for module in model.modules():
        if isinstance(module, kinds):
            inputs[module] = []
            module.register_forward_pre_hook(lambda module, args: inputs[module].append(args[0].clone()))
            module.register_forward_hook(hook, with_kwargs=True)
    run(model, batch)
    if isinstance(batch, dict):
        keep = ~batch["src_key_padding_mask"]
        return {name: [(A[keep], Z[keep]) for A, Z in found] for name, found in calls.items()}
    return {name: [(A.flatten(0, -2), Z.flatten(0, -2)) for A, Z in found] for name, found in calls.items()}


def mixed(attention: nn.MultiheadAttention, x: Tensor, padding: Tensor | None) -> Tensor:
    """softmax(q k' / sqrt(d)) v, heads side by side: what the last projection reads."""
    q, k, v = (
        part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
        for part in F.linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
    )
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if padding is not None:
        hidden = padding if padding.dtype == torch.bool else padding < 0
        scores = scores.masked_fill(hidden[:, None, None], -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def unfolded(conv: Any, x: Tensor, z: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Patches of every group by a convolution whose kernels have a single one each."""
    width, pairs = conv.weight[0].numel(), []
    for channels, outputs in zip(x.chunk(conv.groups, 1), z.chunk(conv.groups, 1), strict=True):
        same = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, 1, False, conv.padding_mode)
        reader = type(conv)(channels.shape[1], width, *same).double()
        reader.weight.data = torch.eye(width).double().reshape(width, *conv.weight.shape[1:])
        pairs.append((reader(channels).movedim(1, -1).clone(), outputs.movedim(1, -1).clone()))
    return pairs


@torch.no_grad()
def pruned_by_hand(case: Case, sparsity: float, activations: dict[str, str]) -> nn.Module:
    """The whole network runs anew for every layer; the answer comes from no code of the engine's."""
    original, pruned = copy.deepcopy(case.model).eval(), copy.deepcopy(case.model).eval()
    rows = picked(case.rows, places_of(case.samples) % 10 != 0)
    then, several = captured(copy.deepcopy(original), rows), with_several_biases(original)
    for name in then:
        now = captured(copy.deepcopy(pruned), rows)[name]
        weight = pruned.get_parameter(name)
        path = name.replace("weight", "bias")
        bias = dict(pruned.named_parameters()).get(path)
        layer = pruned.get_submodule(name.rpartition(".")[0])
        groups = getattr(layer, "groups", 1)
        kept = top_k_mask(weight.abs(), Sparsity(sparsity).count(weight.numel())).chunk(groups)
        for group in range(groups):
            A = torch.cat([A for A, _ in now[group::groups]])
            B = torch.cat([Z for _, Z in then[name][group::groups]])
            B = B.relu() if activations[name] == "relu" else B
            block = weight.chunk(groups)[group]
            own = None if bias is None else bias.chunk(groups)[group]
            if name in several:  # what the weight alone gives; the biases stay
                B, own = torch.cat([A for A, _ in then[name]]) @ original.get_parameter(name).T, None
            U, _ = fit(block.flatten(1).T, own, A, B, int(kept[group].sum()))
            block.copy_(U.T.reshape(block.shape))
    return pruned


def with_several_biases(model: nn.Module) -> set[str]:
    """Weights that are a part of several layers, each with a bias of its own."""
    owners = {id(p): name for name, p in reversed(list(model.named_parameters()))}
    biases: dict[str, set[int]] = {}
    for layer in (module for module in model.modules() if isinstance(module, nn.Linear)):
        biases.setdefault(owners[id(layer.weight)], set()).add(id(layer.bias))
    return {name for name, found in biases.items() if len(found) > 1}


def activations_of(model: nn.Module) -> dict[str, str]:
    """By weight: the ReLU where it follows every layer with that weight, as the parts are put together."""
    followed = set()
    for module in model.modules():
        if type(module) is nn.Sequential:
            followed |= {one for one, after in pairwise(module) if isinstance(after, nn.ReLU)}
        if isinstance(module, nn.TransformerEncoderLayer):
            followed.add(module.linear1)
    others = {id(p) for module in model.modules() if module not in followed for p in module._parameters.values()}
    return {name: "linear" if id(p) in others else "relu" for name, p in model.named_parameters()}


def snapshot(model: nn.Module) -> Any:
    modules = list(model.modules())
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) + ("forward" in m.__dict__) for m in modules]
    return [t.tolist() for t in model.state_dict().values()], [m.training for m in modules], hooks


def same(one: Any, other: Any) -> bool:
    pairs = zip(one.values(), other.values(), strict=True) if isinstance(one, dict) else [(one, other)]
    return all(torch.equal(a, b) for a, b in pairs)


quiet = pytest.mark.filterwarnings("ignore:Using padding='same'")


@quiet
@settings(max_examples=80, phases=[Phase.generate])
@given(cases())
def test_networks_agree_with_pruning_each_layer_by_hand(case):
    result = feta.prune(case.model, case.data, 0.5, Fitting(), layers="*", settings=Settings(batchnorm=False))
    expected = pruned_by_hand(case, 0.5, activations_of(case.model)).state_dict()
    for name, tensor in result.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-8)


@quiet
@settings(max_examples=25, phases=[Phase.generate])
@given(cases(), st.booleans())
def test_every_cache_gives_the_same(case, through):
    """With "replay" the network always runs as a whole; with the others it is cut into segments where that goes."""

    def weights(**how: Any) -> dict[str, Tensor]:
        how = Settings(batchnorm=False, **how)
        return feta.prune(case.model, case.data, 0.5, Fitting(through), layers="*", settings=how).model.state_dict()

    expected = weights(cache="replay")
    for how in ({"cache": "auto"}, {"cache": "disk"}, {"cache": "memory"}, {"memory": 1e-6}):
        for name, tensor in weights(**how).items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-8)


@quiet
@settings(max_examples=40, phases=[Phase.generate])
@given(cases(), st.sampled_from(METHODS))
@torch.no_grad()
def test_nothing_to_prune_leaves_outputs_as_they_were(case, method):
    result = feta.prune(case.model, case.data, 0.0, method, layers="*")
    before, after = (run(copy.deepcopy(model).eval(), case.rows) for model in (case.model, result.model))
    seen = torch.ones(before.shape[:-1], dtype=torch.bool)
    if isinstance(case.rows, dict):
        seen = ~case.rows["src_key_padding_mask"]
    torch.testing.assert_close(after[seen], before[seen], rtol=1e-5, atol=1e-5 * float(before.abs().max()))


@quiet
@settings(max_examples=40, phases=[Phase.generate])
@given(cases(), st.sampled_from(METHODS))
def test_counts_masks_files_and_the_model_that_was_given(case, method):
    before, data = snapshot(case.model), copy.deepcopy(case.data)
    result = feta.prune(case.model, case.data, 0.6, method, layers="*")
    assert snapshot(case.model) == before
    assert all(map(same, data, case.data))
    for layer in result.report.layers:
        assert layer.nonzeros == Sparsity(0.6).count(math.prod(layer.shape))
        assert torch.equal(feta.masks_of(result.model, layer.name)[layer.name], result.masks[layer.name])
        assert int(result.masks[layer.name].sum()) == layer.nonzeros
    left = sum(entry.weights for entry in result.report.skipped)
    weights = sum(p.numel() for p in case.model.parameters() if p.ndim > 1)
    assert left + sum(math.prod(layer.shape) for layer in result.report.layers) == weights
    with tempfile.TemporaryDirectory() as folder:
        feta.save(result.model, Path(folder) / "pruned.safetensors")
        back = feta.load_into(copy.deepcopy(case.model), Path(folder) / "pruned.safetensors")
    assert all(map(torch.equal, back.state_dict().values(), result.model.state_dict().values()))
