"""Streams: the same rows from replay, disk and memory; chunks, minibatches and samples of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from feta.calibration.capture import LayerTap
from feta.calibration.inputs import Inputs
from feta.calibration.spill import Spill
from feta.calibration.stream import KeptSource, LayerStream, ReplaySource, TensorStream, minibatches, sample_rows
from feta.errors import ConfigError
from feta.layers import LayerView
from feta.problem import Activation


@pytest.fixture
def model():
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 2, 3, padding=1)
    return nn.Sequential(conv, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(32, 5), nn.ReLU()).eval()


X = torch.randn(11, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def replay(model: nn.Module, name: str, pruned: nn.Module | None = None, calls: int = 1) -> ReplaySource:
    tap = LayerTap(pruned, name, calls) if pruned is not None else None
    return ReplaySource(Inputs(X, batch_size=4), LayerTap(model, name, calls), tap)


def sources(source: ReplaySource) -> list[ReplaySource | KeptSource]:
    """The same pairs replayed, on disk and in memory."""
    return [source, *(KeptSource(kept(source.pairs()), torch.device("cpu")) for kept in (Spill, list))]


def rows(stream) -> tuple[torch.Tensor, torch.Tensor]:
    A, B = zip(*stream.chunks(), strict=True)
    return torch.cat(A), torch.cat(B)


@pytest.mark.parametrize("name", ["0", "3"])
@pytest.mark.parametrize("max_values", [1, 300, 2**23])
def test_replayed_spilled_and_held_are_the_same_on_every_pass(model, name, max_values):
    source = replay(model, name)
    view = LayerView(model.get_submodule(name), name)
    expected = rows(LayerStream(source, view, Activation.RELU, max_values=max_values))
    for other in sources(source):
        stream = LayerStream(other, view, Activation.RELU, max_values=max_values)
        for _ in range(2):
            assert all(torch.equal(x, y) for x, y in zip(rows(stream), expected, strict=True))
        assert stream.n_rows == len(expected[0])
        assert torch.equal(torch.cat(list(stream.inputs())), expected[0])


@pytest.mark.parametrize("stride", [1, 2, 3, 20])
def test_thinned_streams_hold_the_rows_of_some_samples(model, stride):
    source, view = replay(model, "0"), LayerView(model[0], "0")
    kept = X[::stride]
    for other in sources(source):
        thin = LayerStream(other, view, Activation.RELU).thinned(stride)
        assert thin.n_rows == 16 * len(kept)  # counted before the first pass
        A, B = rows(thin)
        torch.testing.assert_close(A, torch.cat(list(view.input_chunks(kept, 0, 2**23))))
        torch.testing.assert_close(B, torch.relu(model[0](kept)).movedim(1, -1).reshape(-1, 2))


def test_thinned_tensors():
    assert [A.flatten().tolist() for A, _ in numbered(10, 3).thinned(4).chunks()] == [[0.0, 4.0, 8.0]]


def test_inputs_alone_do_not_run_the_layer(model):
    class Last(nn.Linear):
        def forward(self, x):
            raise AssertionError("the layer's own output is not needed")

    model[3] = Last(32, 5)
    stream = LayerStream(replay(model, "3"), LayerView(model[3]), Activation.RELU)
    torch.testing.assert_close(torch.cat(list(stream.inputs())), model[:3](X))


def test_rows_are_the_layers_own(model):
    A, B = rows(LayerStream(replay(model, "3"), LayerView(model[3]), Activation.RELU))
    x = model[:3](X)
    torch.testing.assert_close(A, x)
    torch.testing.assert_close(B, torch.relu(model[3](x)))
    _, Z = rows(LayerStream(replay(model, "3"), LayerView(model[3]), Activation.LINEAR))
    torch.testing.assert_close(Z, model[3](x))
    assert (Z < 0).any()


def test_the_pruned_network_gives_inputs_and_the_original_outputs(model):
    torch.manual_seed(1)
    pruned = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), *model[1:3], nn.Linear(32, 5)).eval()
    A, B = rows(LayerStream(replay(model, "3", pruned), LayerView(pruned[3]), Activation.RELU))
    torch.testing.assert_close(A, pruned[:3](X))
    torch.testing.assert_close(B, model(X))


def test_every_call_of_a_shared_layer_gives_rows():
    torch.manual_seed(0)
    shared = nn.Linear(16, 16)
    model = nn.Sequential(nn.Flatten(), shared, nn.ReLU(inplace=True), shared)
    A, B = rows(LayerStream(replay(model, "1", calls=2), LayerView(shared), Activation.LINEAR))
    x = X.flatten(1)
    between = torch.relu(shared(x))
    order = torch.arange(11).split(4)
    torch.testing.assert_close(A, torch.cat([t[i] for i in order for t in (x, between)]))
    torch.testing.assert_close(B, shared(A))


def test_half_precision_rows_come_in_float32():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).bfloat16()
    source = ReplaySource(Inputs(X), LayerTap(model, "1"))
    A, B = next(LayerStream(source, LayerView(model[1]), Activation.RELU).chunks())
    assert (A.dtype, B.dtype) == (torch.float32, torch.float32)


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
