"""Streams: the same rows from replay, disk and memory; chunks, minibatches and samples of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from feta.calibration.hold import Room
from feta.calibration.inputs import Inputs
from feta.calibration.spill import Spill
from feta.calibration.stream import LayerStream, Source, TensorStream, Through, minibatches, sample_rows
from feta.errors import ConfigError
from feta.problem import Activation
from nets import stream_of


@pytest.fixture
def model():
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 2, 3, padding=1)
    return nn.Sequential(conv, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(32, 5), nn.ReLU()).eval()


X = torch.randn(11, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def replay(model: nn.Module, name: str, pruned: nn.Module | None = None, data=X, **options) -> LayerStream:
    return stream_of(model, name, Inputs(data, batch_size=4), pruned, **options)


def sources(source: Source) -> list[Source]:
    """The same calls replayed, on disk and in memory."""
    seen = lambda: source.lane.seen(source.segment, source.layers, source.cascaded)  # noqa: E731
    room = Room(torch.device("cpu"), 300)  # some of them in memory, the others in a file
    same = source.lane, source.segment, source.layers, source.cascaded
    return [source, *(Source(*same, kept(seen())) for kept in (Spill, list, room.hold))]


def rows(stream) -> tuple[torch.Tensor, torch.Tensor]:
    A, B = zip(*stream.chunks(), strict=True)
    return torch.cat(A), torch.cat(B)


@pytest.mark.parametrize("name", ["0", "3"])
@pytest.mark.parametrize("max_values", [1, 300, 2**23])
def test_replayed_spilled_and_held_are_the_same_on_every_pass(model, name, max_values):
    first = replay(model, name, max_values=max_values)
    expected = rows(first)
    for source in sources(first.source):
        stream = LayerStream(source, first.view, first.through, max_values=max_values)
        for _ in range(2):
            assert all(torch.equal(x, y) for x, y in zip(rows(stream), expected, strict=True))
        assert stream.n_rows == len(expected[0])
        assert torch.equal(torch.cat(list(stream.inputs())), expected[0])
        assert all(R is None for _, _, R in stream.rows())


@pytest.mark.parametrize("max_values", [1, 300, 2**23])
@pytest.mark.parametrize("size", [1, 30, 100, 1000])
def test_sampled_streams_hold_rows_of_the_stream_in_its_order(model, size, max_values):
    first = replay(model, "0", max_values=max_values)
    A, B = rows(first)
    whole = [tuple(row) for row in torch.cat([A, B], 1).tolist()]
    for source in sources(first.source):
        some = LayerStream(source, first.view, first.through, max_values=max_values).sampled(size)
        found = [tuple(row) for row in torch.cat(rows(some), 1).tolist()]
        places = [whole.index(row) for row in found]
        assert places == sorted(set(places))
        assert some.n_rows == len(found) >= 1
        if size >= len(whole):
            assert found == whole


def test_inputs_alone_do_not_run_the_layer(model):
    stream, expected = replay(model, "3"), model[:3](X).detach()
    model[3].bias = nn.Parameter(torch.zeros(7))  # the product could not be formed
    torch.testing.assert_close(torch.cat(list(stream.inputs())), expected)


def test_rows_are_the_layers_own(model):
    A, B = rows(replay(model, "3"))
    x = model[:3](X)
    torch.testing.assert_close(A, x)
    torch.testing.assert_close(B, torch.relu(model[3](x)))
    _, Z = rows(replay(model, "3", activation=Activation.LINEAR))
    torch.testing.assert_close(Z, model[3](x))
    assert (Z < 0).any()


def test_the_pruned_network_gives_inputs_and_the_original_outputs(model):
    torch.manual_seed(1)
    pruned = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), *model[1:3], nn.Linear(32, 5)).eval()
    A, B = rows(replay(model, "3", pruned))
    torch.testing.assert_close(A, pruned[:3](X))
    torch.testing.assert_close(B, model(X))


def test_every_call_of_a_shared_layer_gives_rows():
    torch.manual_seed(0)
    shared = nn.Linear(16, 16)
    model = nn.Sequential(nn.Flatten(), shared, nn.ReLU(inplace=True), shared)
    A, B = rows(replay(model, "1", activation=Activation.LINEAR))
    x = X.flatten(1)
    between = torch.relu(shared(x))
    order = torch.arange(11).split(4)
    torch.testing.assert_close(A, torch.cat([t[i] for i in order for t in (x, between)]))
    torch.testing.assert_close(B, shared(A))


def test_half_precision_rows_come_in_float32():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).bfloat16()
    A, B = next(replay(model, "1").chunks())
    assert (A.dtype, B.dtype) == (torch.float32, torch.float32)


def test_groups_have_rows_of_their_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 2, groups=2)).double()
    data = X.double()
    z = model(data)
    for group in range(2):
        stream = replay(model, "2", data=data, activation=Activation.LINEAR, group=group)
        A, B = rows(stream)
        assert A.shape == (11, 8)
        torch.testing.assert_close(A @ stream.view.matrix(group) + stream.view.bias(group), B)
        torch.testing.assert_close(B, z[:, 3 * group : 3 * group + 3].flatten(1))


# Behind a batch-norm and a shortcut


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv, self.bn = nn.Conv2d(1, 3, 1), nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)
        for parameter in (self.bn.weight, self.bn.bias, self.bn.running_mean):
            nn.init.normal_(parameter)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        y = self.bn(self.conv(x))
        y += x
        return torch.relu_(y)


@pytest.mark.parametrize("max_values", [1, 700, 2**23])
def test_rows_behind_a_norm_and_a_shortcut(max_values):
    torch.manual_seed(0)
    model, pruned, data = Residual().double().eval(), Residual().double().eval(), X.double()
    pruned.bn.load_state_dict(model.bn.state_dict())
    scale = model.bn.weight / (model.bn.running_var + model.bn.eps).sqrt()
    through = Through(Activation.RELU, scale, model.bn.bias - model.bn.running_mean * scale, shortcut=True)
    stream = stream_of(model, "conv", Inputs(data, batch_size=4), pruned, through=through, max_values=max_values)
    A, Z, R = map(torch.cat, zip(*stream.rows(), strict=True))

    def flat(t: torch.Tensor) -> torch.Tensor:
        return t.movedim(1, -1).reshape(-1, 3)

    assert (Z < 0).any()
    torch.testing.assert_close(torch.relu(Z), flat(model(data)))
    assert torch.equal(rows(stream)[1], torch.relu(Z))
    torch.testing.assert_close(R, flat(torch.relu(pruned.stem(data))))
    # What the pruned network gives, by its rows.
    now = (A @ stream.view.matrix() + stream.view.bias()) * scale + through.shift + R
    torch.testing.assert_close(torch.relu(now), flat(pruned(data)))
    some = stream.sampled(50)
    index = [int((row == A).all(1).nonzero()[0, 0]) for row in some.A]
    assert torch.equal(some.B, Z[index])
    assert torch.equal(some.R, R[index])
    assert torch.equal(rows(some)[1], torch.relu(Z[index]))
    fewer = some.sampled(20)
    assert torch.equal(rows(fewer)[1], torch.relu(fewer.B))


# Padding


def test_padding_gives_no_rows():
    torch.manual_seed(0)

    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.fc = nn.Embedding(50, 6), nn.Linear(6, 3)

        def forward(self, ids, attention_mask):
            return self.fc(self.embed(ids))

    keep = torch.arange(9)[None] < torch.randint(1, 10, (40, 1))
    ids = torch.arange(360).reshape(40, 9) % 49 + 1
    data = [{"ids": i * k, "attention_mask": k.long()} for i, k in zip(ids.split(8), keep.split(8), strict=True)]
    model = Text()
    for max_values in (1, 100, 2**23):
        stream = stream_of(model, "fc", Inputs(data), max_values=max_values)
        expected = model.embed(ids[keep]).detach()
        assert torch.equal(rows(stream)[0], expected)
        assert torch.equal(torch.cat(list(stream.inputs())), expected)
        assert stream.n_rows == int(keep.sum())
        drawn = stream.sampled(60).A
        assert abs(len(drawn) - 60) < 5 * 60**0.5
        assert not bool((drawn == model.embed.weight[0]).all(1).any())


def test_a_mask_of_positions_says_nothing_of_the_channels_of_a_convolution():
    torch.manual_seed(0)

    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.conv = nn.Embedding(50, 6), nn.Conv1d(6, 3, 3, padding=1)

        def forward(self, ids, attention_mask):
            return self.conv(self.embed(ids).transpose(1, 2))

    keep = torch.arange(6)[None] < torch.randint(1, 7, (8, 1))  # as long as the embedding is wide
    stream = stream_of(Text(), "conv", Inputs([{"ids": torch.randint(50, (8, 6)), "attention_mask": keep.long()}]))
    A, B = rows(stream)
    assert len(A) == len(B) == stream.n_rows
    assert len(A) in (48, int(keep.sum()))


# A sample stands for all rows


def marked(samples: int, side: int = 8) -> torch.Tensor:
    """Images whose every pixel tells its image and its place."""
    return torch.arange(float(samples * side**2)).reshape(samples, 1, side, side)


@pytest.mark.parametrize("batch_size", [1, 7, 200])
def test_no_sample_and_no_position_has_more_than_its_share(batch_size):
    """Data sorted by class, a first image that differs: no part of the data counts for more than it is."""
    samples, positions, size = 200, 64, 2000
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU())
    stream = stream_of(model, "0", Inputs(marked(samples), batch_size=batch_size))
    first, second = (stream.sampled(size).A[:, 0].long() for _ in range(2))
    assert torch.equal(first, second)
    assert len(first.unique()) == len(first)
    share = size / (samples * positions)

    def within(count: torch.Tensor, of: int) -> bool:
        return bool(((count - of * share).abs() < 5 * (of * share * (1 - share)) ** 0.5 + 1e-9).all())

    assert within(torch.tensor(len(first)), samples * positions)
    per_sample = torch.bincount(first // positions, minlength=samples)
    assert within(per_sample, positions)
    assert within(torch.bincount(first % positions, minlength=positions), samples)
    assert within(per_sample.reshape(10, -1).sum(1), 20 * positions)  # of ten classes, one after the other
    # As uneven as chance makes it: neither the same number of each sample, nor a few samples in full.
    spread = float(per_sample.double().var()) / (positions * share * (1 - share))
    assert abs(spread - 1) < 5 * (2 / (samples - 1)) ** 0.5


def test_a_sample_of_layers_with_few_rows_is_drawn_over_all_of_them():
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    stream = stream_of(model, "1", Inputs(torch.arange(4000.0)[:, None], batch_size=1))
    drawn = stream.sampled(400).A[:, 0]
    assert abs(len(drawn) - 400) < 5 * 400**0.5
    counts = torch.histc(drawn, 10, 0, 4000)
    assert bool(((counts - 40).abs() < 5 * 40**0.5).all())


@given(m=st.integers(1, 40), chunk=st.integers(1, 45), size=st.integers(1, 45))
def test_a_sample_of_tensors_is_exact_and_the_same_on_every_pass(m, chunk, size):
    A = torch.arange(float(m))[:, None]
    stream = TensorStream(A, A * 10, chunk, A * 100)
    some = stream.sampled(size)
    assert some.n_rows == min(m, size)
    assert torch.equal(some.A, some.A.unique(dim=0))  # distinct, in order
    assert torch.equal(some.A, stream.sampled(size).A)
    for part, B, R in some.rows():
        assert torch.equal(B, part * 10)
        assert torch.equal(R, part * 100)


def numbered(m: int, chunk: int) -> TensorStream:
    """Row i holds i, in A and in B."""
    A = torch.arange(float(m))[:, None]
    return TensorStream(A, A * 10, chunk)


@pytest.mark.parametrize(
    ("a", "b"), [((3, 2), (4, 2)), ((3,), (3, 2)), ((3, 2), (3,)), ((0, 2), (0, 2)), ((3, 2, 1), (3, 2))]
)
def test_tensors_of_the_wrong_shape(a, b):
    with pytest.raises(ConfigError, match=r"A and B must be \(m, d_in\) and \(m, d_out\) with m >= 1, got"):
        TensorStream(torch.zeros(a), torch.zeros(b))


@given(m=st.integers(1, 40), chunk=st.integers(1, 45), size=st.integers(1, 45), seed=st.integers(0, 9))
def test_minibatches_cover_each_row_once(m, chunk, size, seed):
    batches = list(minibatches(numbered(m, chunk), size, torch.Generator().manual_seed(seed)))
    assert all(len(A) <= size for A, _ in batches)
    assert all(torch.equal(B, A * 10) for A, B in batches)
    assert sorted(torch.cat([A for A, _ in batches]).flatten().tolist()) == list(range(m))


def test_minibatches_are_shuffled_and_follow_the_generator():
    def order(seed: int) -> list[float]:
        batches = minibatches(numbered(50, 25), 5, torch.Generator().manual_seed(seed))
        return torch.cat([A for A, _ in batches]).flatten().tolist()

    assert order(0) == order(0)
    assert order(0) != order(1)
    assert order(0) != list(range(50))


@given(m=st.integers(1, 40), chunk=st.integers(1, 45), n=st.integers(1, 45), seed=st.integers(0, 9))
def test_sampled_rows_are_distinct_and_do_not_depend_on_the_chunks(m, chunk, n, seed):
    A, B = sample_rows(numbered(m, chunk), n, torch.Generator().manual_seed(seed))
    assert len(A) == len(A.unique()) == min(m, n)
    assert torch.equal(B, A * 10)
    again, _ = sample_rows(numbered(m, 1000), n, torch.Generator().manual_seed(seed))
    assert torch.equal(A, again)


def test_samples_come_from_the_whole_stream_and_follow_the_generator():
    drawn = [sample_rows(numbered(1000, 100), 50, torch.Generator().manual_seed(s))[0] for s in range(2)]
    assert not torch.equal(*drawn)
    for A in drawn:
        assert A.min() < 200
        assert A.max() > 800
