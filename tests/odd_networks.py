"""Small networks as odd as they come, drawn by Hypothesis, with data for them.

Branches that meet, layers and weights used twice, work in place, attention with padding, odd convolutions.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor, nn

WIDTH, LENGTH = 6, 5
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


# What networks are made of. Every part keeps the shape of what it is given, but for strided convolutions.


class Around(nn.Module):
    """Parts that meet: in a sum, in place, in a product, or one after the other."""

    def __init__(self, how: str, *parts: nn.Module) -> None:
        super().__init__()
        self.how, self.parts = how, nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.parts[0], self.parts[-1]
        if self.how == "residual":
            return F.relu(x + second(first(x)))
        if self.how == "in place":
            x += first(x)
            return x
        if self.how == "branches":
            return first(x) + second(x)
        if self.how == "gate":
            return torch.sigmoid(first(x)) * second(x)
        return second(first(x))


class Attend(nn.Module):
    """Self-attention with a shortcut; positions first where the attention wants them so."""

    def __init__(self, bias: bool, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 3, bias=bias, batch_first=batch_first)

    def forward(self, x: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        y = x if self.attention.batch_first else x.transpose(0, 1)
        y, _ = self.attention(y, y, y, key_padding_mask=src_key_padding_mask)
        return x + (y if self.attention.batch_first else y.transpose(0, 1))


@dataclass(frozen=True)
class Parts:
    """A box of parts for inputs with so many spatial dimensions (0: features come last)."""

    draw: Callable[[Any], Any]
    spatial: int

    def layer(self, *, stride: bool = False) -> nn.Module:
        bias = self.draw(st.booleans())
        if not self.spatial:
            return nn.Linear(WIDTH, WIDTH, bias)
        kernel = self.draw(st.sampled_from([1, 2, 3]))
        if stride and self.draw(st.booleans()):
            return CONVOLUTIONS[self.spatial](WIDTH, WIDTH, kernel, stride=2, padding=kernel - 1, bias=bias)
        groups, dilation = self.draw(st.sampled_from([1, 2, WIDTH])), self.draw(st.sampled_from([1, 2]))
        padding, modes = "same", ["zeros", "reflect", "replicate", "circular"]
        if kernel % 2 and self.draw(st.booleans()):
            padding = dilation * (kernel // 2)
        mode = self.draw(st.sampled_from(modes))
        return CONVOLUTIONS[self.spatial](WIDTH, WIDTH, kernel, 1, padding, dilation, groups, bias, mode)

    def relu(self) -> nn.Module:
        return self.draw(st.sampled_from([nn.ReLU(), nn.ReLU(inplace=True)]))

    def norm(self, tokens: bool) -> nn.Module:
        norm = nn.LayerNorm(WIDTH) if tokens else NORMS[self.spatial](WIDTH)
        if not tokens:
            norm.running_mean, norm.running_var = torch.randn(WIDTH), torch.rand(WIDTH) + 0.5
        norm.weight.data, norm.bias.data = torch.randn(WIDTH), torch.randn(WIDTH)
        return norm


def part(box: Parts, kind: str, before: list[nn.Module], tokens: bool) -> nn.Module:
    """One part of a network."""
    if kind == "again" and before:
        return box.draw(st.sampled_from(before))
    if kind == "tied" and not box.spatial:
        layers = [
            m for one in before for m in one.modules() if type(m) is nn.Linear and m.weight.shape == (WIDTH, WIDTH)
        ]
        fresh = nn.Linear(WIDTH, WIDTH)
        if layers:
            fresh.weight = box.draw(st.sampled_from(layers)).weight
        return nn.Sequential(fresh, nn.Tanh())
    if kind == "attention" and tokens:
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 4, batch_first=True, norm_first=box.draw(st.booleans()))
        whole = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        own = Attend(box.draw(st.booleans()), box.draw(st.booleans()))
        return box.draw(st.sampled_from([layer, whole, own]))
    if kind == "wide" and not box.spatial:
        return nn.Sequential(nn.Linear(WIDTH, 9), box.relu(), nn.Linear(9, WIDTH))
    if kind == "in place":
        return Around(kind, box.layer())
    if kind in ("residual", "branches", "gate"):
        return Around(kind, nn.Sequential(box.layer(), box.relu()), box.layer())
    if kind == "norm first":
        return nn.Sequential(box.norm(tokens), box.layer(), box.relu())
    if kind == "norm after":
        return nn.Sequential(box.layer(), box.norm(tokens), nn.Dropout(0.5), box.relu())
    return nn.Sequential(box.layer(stride=True), box.relu())


KINDS = ["again", "attention", "branches", "gate", "in place", "norm after", "norm first", "plain", "residual"]
KINDS += ["tied", "wide"]


class Network(nn.Module):
    """Parts one after the other, called by a forward of its own, and a head over the mean of all positions."""

    def __init__(self, parts: list[nn.Module], tokens: bool) -> None:
        super().__init__()
        self.body, self.tokens = nn.ModuleList(parts), tokens
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        for one in self.body:
            attends = isinstance(one, nn.TransformerEncoderLayer | nn.TransformerEncoder | Attend)
            x = one(x, src_key_padding_mask=src_key_padding_mask) if attends else one(x)
        if self.tokens:
            return self.head(x)
        return self.head(x.flatten(2).mean(2) if x.ndim > 2 else x)


class Case:
    """A network and its data; rows: all samples as one batch."""

    def __init__(self, model: nn.Module, data: list[Any], rows: Any) -> None:
        self.model, self.data, self.rows = model, data, rows

    def __repr__(self) -> str:
        return f"{len(self.data)} batches of {self.samples} samples for {self.model}"

    @property
    def samples(self) -> int:
        return len(self.rows["x"] if isinstance(self.rows, dict) else self.rows)


@st.composite
def cases(draw: Callable[[Any], Any]) -> Case:
    family = draw(st.sampled_from(["flat", "tokens", "padded", "signal", "image", "volume"]))
    tokens, spatial = family in ("tokens", "padded"), {"signal": 1, "image": 2, "volume": 3}.get(family, 0)
    torch.manual_seed(draw(st.integers(0, 999)))
    box, body = Parts(draw, spatial), []
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5)):
        body.append(part(box, kind, body, tokens))
    model = Network(body, tokens).double()
    if not tokens and not any(isinstance(m, Around) for m in model.modules()) and draw(st.booleans()):
        model = nn.Sequential(*body, nn.Flatten(2) if spatial else nn.Identity()).double()
    model.train(draw(st.booleans()))
    samples = draw(st.integers(12, 24))
    rows: Any = torch.randn(
        samples, *[WIDTH][: not tokens], *[LENGTH] * (spatial or tokens), *[WIDTH][:tokens]
    ).double()
    if family == "padded":
        lengths = torch.randint(1, LENGTH + 1, (samples,))
        rows = {"x": rows, "src_key_padding_mask": torch.arange(LENGTH) >= lengths[:, None]}
    try:
        run(copy.deepcopy(model).eval(), rows)
    except RuntimeError:
        assume(False)  # strides have left less than the padding reflects
    size = draw(st.integers(1, samples))
    parts = [picked(rows, torch.arange(samples)[start : start + size]) for start in range(0, samples, size)]
    return Case(model, parts, rows)


def picked(rows: Any, chosen: Tensor) -> Any:
    return {k: v[chosen] for k, v in rows.items()} if isinstance(rows, dict) else rows[chosen]


def run(model: nn.Module, batch: Any) -> Tensor:
    """The outputs; the batch stays as it is also where the model works in place."""
    batch = copy.deepcopy(batch)
    return model(**batch) if isinstance(batch, dict) else model(batch)
