"""Two networks on their way through the same samples: their rows are those of plain runs, at every segment."""

import copy

import pytest
import torch
from torch import nn

import nets
from feta.calibration.inputs import Inputs
from feta.calibration.lane import Unlike, kept_rows
from feta.calibration.model import fused_attention_off, run_on
from feta.calibration.tap import Tap
from nets import lane_of

X = torch.randn(11, 6, generator=torch.Generator().manual_seed(0))
MAPS = torch.randn(7, 2, 6, 6, generator=torch.Generator().manual_seed(1))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        nn.init.normal_(self.bn2.weight)

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu_(self.bn1(self.conv1(x)))))
        y += x
        return torch.relu_(y)


def residual() -> nn.Module:
    blocks = (Residual(4) for _ in range(3))
    return nn.Sequential(nn.Conv2d(2, 4, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()


class AddsInPlace(nn.Module):
    """A block that adds twice to the very tensor it is given, as many transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        x += torch.relu(self.a(x))
        x += torch.relu(self.b(x))
        return x


def adds_in_place() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), AddsInPlace(), AddsInPlace(), nn.Linear(6, 2))


MODELS = {"mlp": (lambda: nets.mlp(6, 8, 7, 5, 3), X, 4), "residual": (residual, MAPS, 3)}


def plain(model: nn.Module, trace, batch):
    """Calls of a layer in a run of the whole model."""
    tap = Tap(model, [trace])
    return tap.run(lambda: run_on(model, batch.clone()), outputs=True, shortcuts=True)[trace.name]


@pytest.mark.parametrize("room", [1e9, 0], ids=["memory", "file"])
@pytest.mark.parametrize("cascaded", [True, False])
@pytest.mark.parametrize(("make", "data", "size"), list(MODELS.values()), ids=list(MODELS))
def test_rows_at_every_segment_are_those_of_plain_runs(make, data, size, cascaded, room):
    check_rows(make(), data, size, cascaded, room)


@pytest.mark.parametrize("cascaded", [True, False])
def test_rows_of_a_network_that_works_in_place_on_its_states(cascaded):
    check_rows(adds_in_place(), X, 4, cascaded, 1e9)


def test_rows_of_a_network_that_works_in_place_on_its_states_from_a_file():
    check_rows(adds_in_place(), X, 4, True, 0)


def check_rows(model: nn.Module, data: torch.Tensor, size: int, cascaded: bool, room: float) -> None:
    """At every layer of a walk: what lanes see against runs of both networks as a whole."""
    pruned = copy.deepcopy(model)
    lane, layers = lane_of(model, Inputs(data, batch_size=size), pruned, room=room)
    segments, met = lane.chain.segments(layers), []
    assert len(segments) > 3
    for segment in segments:
        for trace in segment.layers:
            inputs = list(lane.inputs_seen(segment, [trace], trace.name, cascaded and lane.parted))
            for _ in range(2):
                found = list(lane.seen(segment, [trace], cascaded and lane.parted))
                assert len(found) == len(inputs) == -(-len(data) // size)
                for batch, calls, (x, keep) in zip(data.split(size), found, inputs, strict=True):
                    (seen,), (then,) = calls[trace.name], plain(model, trace, batch)
                    (now,) = plain(pruned if cascaded else model, trace, batch)
                    assert torch.equal(seen.x, now.x)
                    assert torch.equal(x, now.x)
                    assert torch.equal(seen.z, then.z)
                    assert seen.keep is keep is None
                    for one, other in ((seen.before, then.shortcut), (seen.now, now.shortcut)):
                        assert (one is None) == (other is None) == (not trace.follow.shortcut)
                        assert one is None or torch.equal(one, other)
            with torch.no_grad():  # the layer is pruned: from here on the two networks differ
                pruned.get_submodule(trace.name).weight *= 0.8
            lane.parted = cascaded
            met.append(trace.name)
        if segment is not segments[-1]:
            lane.advance(segment)
    assert met == [trace.name for trace in layers]


def test_networks_that_have_not_parted_share_their_states():
    model = nets.mlp(6, 8, 7, 5, 3)
    lane, layers = lane_of(model, Inputs(X, batch_size=4), copy.deepcopy(model))
    head, first, *_ = lane.chain.segments(layers)
    lane.advance(head)
    assert lane._states[0] is lane._states[1]
    lane.parted = True
    lane.advance(first)
    assert lane._states[0] is not lane._states[1]
    assert all(map(torch.equal, lane._states[0], lane._states[1]))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        mixed = nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        return self.o(mixed)


def test_layers_with_one_input_come_out_of_one_pass():
    model = nn.Sequential(Attention(), Attention())
    lane, layers = lane_of(model, Inputs(torch.randn(5, 4, 6), batch_size=2))
    head, segment, *_ = lane.chain.segments(layers)
    lane.advance(head)
    group = [layer for layer in segment.layers if layer.name in ("0.q", "0.k", "0.v")]
    for calls in lane.seen(segment, group, cascaded=False):
        assert list(calls) == ["0.q", "0.k", "0.v"]
        for name, (seen,) in calls.items():
            torch.testing.assert_close(seen.z, model.get_submodule(name)(seen.x))
        assert torch.equal(calls["0.q"][0].x, calls["0.v"][0].x)


def test_a_layer_that_runs_a_different_number_of_times():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x):
            return self.a(self.a(x)) if len(x) > 2 else self.a(x)

    lane, layers = lane_of(Sometimes(), Inputs(X, batch_size=5))
    found = list(lane.seen(lane.chain.segments(layers)[0], layers, cascaded=False))
    assert [len(calls["a"]) for calls in found] == [2, 2, 1]


def test_calls_that_do_not_fit_together_in_the_two_networks():
    class Picks(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.a = nn.Linear(6, 1), nn.Linear(6, 6)

        def forward(self, x):
            return self.a(x[self.gate(x)[:, 0] > 0])

    model, pruned = Picks(), Picks()
    lane, layers = lane_of(model, Inputs(X), pruned, cut=False)
    with torch.no_grad():
        model.gate.bias.fill_(9.0)
        pruned.gate.bias.fill_(-9.0)
    segment = lane.chain.segments(layers)[0]
    with pytest.raises(
        Unlike, match=r"layer 'a' must have rows alike in both networks, got inputs .*\(11, 6\).*\(0, 6\)"
    ):
        list(lane.seen(segment, [layers[1]], cascaded=True))
    ((seen,),) = (calls["a"] for calls in lane.seen(segment, [layers[1]], cascaded=False))
    assert torch.equal(seen.x, X)


# Padding

LENGTHS = torch.tensor([5, 2, 4])
KEEP = torch.arange(5)[None] < LENGTHS[:, None]  # (3, 5)


@pytest.mark.parametrize(
    "batch",
    [
        {"attention_mask": KEEP.long()},
        {"attention_mask": KEEP},
        {"attention_mask": KEEP.float()},
        {"key_padding_mask": ~KEEP},
        {"src_key_padding_mask": ~KEEP},
        {"input_ids": torch.zeros(3, 5), "attention_mask": KEEP.long()},
    ],
    ids=str,
)
def test_rows_that_are_no_padding(batch):
    assert torch.equal(kept_rows(batch, torch.zeros(3, 5, 7)), KEEP.flatten())
    assert torch.equal(kept_rows(batch, torch.zeros(15, 7)), KEEP.flatten())  # flattened
    assert torch.equal(kept_rows(batch, torch.zeros(5, 3, 7)), KEEP.t().flatten())  # positions first
    for other in (torch.zeros(3, 7), torch.zeros(3, 6, 7), torch.zeros(7), torch.zeros(3, 2, 5, 7)):
        assert kept_rows(batch, other) is None


@pytest.mark.parametrize(
    "batch",
    [torch.zeros(3, 5), {"x": torch.zeros(3, 5)}, {"attention_mask": KEEP[:, None, None]}, {"attention_mask": None}],
)
def test_without_a_mask_of_positions_all_rows_count(batch):
    assert kept_rows(batch, torch.zeros(3, 5, 7)) is None


class Text(nn.Module):
    """Ids to scores by a transformer; the pooled head reads one row per sample."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=batch_first)
        self.embed, self.batch_first = nn.Embedding(20, 6), batch_first
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(6, 3)

    def forward(self, ids, attention_mask):
        x = self.embed(ids)
        y = self.body(x if self.batch_first else x.transpose(0, 1), src_key_padding_mask=attention_mask == 0)
        return self.head(y.mean(1 if self.batch_first else 0))


def rows_of_a_text(model: nn.Module, keep: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor | None]]:
    """For each layer its input, of the last of two batches, and the rows that were kept of it."""
    batch = {"ids": torch.randint(20, keep.shape), "attention_mask": keep.long()}
    found = {}
    with fused_attention_off():
        lane, layers = lane_of(model, Inputs([batch, batch]), copy.deepcopy(model))
        segments = lane.chain.segments(layers)
        for segment in segments:
            for trace in segment.layers:
                for calls in lane.seen(segment, [trace], cascaded=False):
                    (seen,) = calls[trace.name]
                    found[trace.name] = seen.x, seen.keep
                inputs = [keep for _, keep in lane.inputs_seen(segment, [trace], trace.name, cascaded=False)]
                assert len(inputs) == 2
                assert all((one is None) == (seen.keep is None) for one in inputs)
                assert all(seen.keep is None or torch.equal(one, seen.keep) for one in inputs)
            if segment is not segments[-1]:
                lane.advance(segment)
    assert len(found) == 9
    return found


@pytest.mark.parametrize("batch_first", [True, False])
def test_padding_is_left_out_of_the_rows_of_every_layer_of_a_text(batch_first):
    for name, (x, keep) in rows_of_a_text(Text(batch_first).eval(), KEEP).items():
        if name == "head":
            assert keep is None
        else:  # attention works on positions first, whatever it is given
            assert torch.equal(keep, (KEEP if x.shape[0] == 3 else KEEP.t()).flatten())
            assert (x.shape[0] == 3) == (batch_first and "self_attn" not in name)


def test_padding_where_there_are_as_many_texts_as_positions():
    square = torch.arange(5)[None] < torch.tensor([5, 2, 4, 1, 3])[:, None]
    for name, (_, keep) in rows_of_a_text(Text(batch_first=True).eval(), square).items():
        if name != "head":
            assert torch.equal(keep, (square.t() if "self_attn" in name else square).flatten())
