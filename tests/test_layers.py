"""rows @ matrix + bias = output rows, in float64, over everything a Linear or a Conv2d can be set to."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from feta.errors import ModelError
from feta.layers import LayerView

EVERYTHING = 2**40


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def output_rows(view: LayerView, z: torch.Tensor, group: int = 0) -> torch.Tensor:
    """The reference: channels last, one row per position."""
    if isinstance(view.layer, nn.Linear):
        return z.reshape(-1, z.shape[-1])
    z = z if z.ndim == 4 else z[None]
    width = z.shape[1] // view.groups
    return z[:, group * width : (group + 1) * width].movedim(1, -1).reshape(-1, width)


def check_equation(layer: nn.Module, x: torch.Tensor, max_values: int = EVERYTHING) -> int:
    """Compare with the layer itself; the number of chunks it took."""
    layer, x = layer.double(), x.double()
    view, z = LayerView(layer), layer(x)
    chunks = []
    for group in range(view.groups):
        chunks = list(view.row_chunks(x, z, group, max_values))
        A, Z = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        alone = list(view.input_chunks(x, group, max_values))
        assert all(torch.equal(one, both) for one, (both, _) in zip(alone, chunks, strict=True))
        bias = view.bias(group)
        assert A.shape[1] == view.matrix(group).shape[0]
        assert torch.equal(Z, output_rows(view, z, group))
        torch.testing.assert_close(A @ view.matrix(group) + (0 if bias is None else bias), Z)
    return len(chunks)


@pytest.mark.parametrize("shape", [(5,), (7, 5), (2, 3, 5), (2, 2, 3, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape, bias):
    check_equation(nn.Linear(5, 4, bias=bias), torch.randn(shape))


@pytest.mark.parametrize("stride", [1, 2, (2, 3)])
@pytest.mark.parametrize("padding", [0, 1, (2, 0), "valid"])
@pytest.mark.parametrize("dilation", [1, (2, 1)])
@pytest.mark.parametrize("kernel", [1, 3, (3, 2)])
def test_conv2d(stride, padding, dilation, kernel):
    layer = nn.Conv2d(3, 4, kernel, stride=stride, padding=padding, dilation=dilation)
    check_equation(layer, torch.randn(2, 3, 9, 8))


# torch warns of its own copy when it pads an even kernel on one side.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("kernel", [1, 3, 2, (4, 3), (2, 5)])
@pytest.mark.parametrize("dilation", [1, 2, (1, 3)])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_padding_same_also_for_even_kernels(kernel, dilation, mode):
    layer = nn.Conv2d(3, 4, kernel, padding="same", dilation=dilation, padding_mode=mode)
    check_equation(layer, torch.randn(2, 3, 9, 13))


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [0, 1, (2, 1), "same"])
def test_padding_modes(mode, padding):
    layer = nn.Conv2d(2, 3, 3, padding=padding, padding_mode=mode)
    check_equation(layer, torch.randn(2, 2, 6, 5))


@pytest.mark.parametrize(("groups", "inputs", "outputs"), [(2, 4, 6), (4, 4, 4), (3, 6, 3), (4, 4, 8)])
@pytest.mark.parametrize("bias", [True, False])
def test_groups(groups, inputs, outputs, bias):
    layer = nn.Conv2d(inputs, outputs, (3, 2), padding=1, groups=groups, bias=bias)
    check_equation(layer, torch.randn(3, inputs, 6, 5))


def test_a_single_image_without_a_batch_and_channels_last():
    check_equation(nn.Conv2d(3, 4, 3), torch.randn(3, 6, 5))
    layer = nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)
    check_equation(layer, torch.randn(2, 3, 6, 5).to(memory_format=torch.channels_last))


CHUNKED = [
    *((nn.Linear(5, 2), torch.randn(12, 5), 5, most) for most in (1, 5, 11, 30, EVERYTHING)),
    *((nn.Conv2d(2, 3, 3), torch.randn(7, 2, 6, 5), 4 * 3 * 2 * 9, most) for most in (1, 200, 400, 1000, EVERYTHING)),
]


@pytest.mark.parametrize(("layer", "x", "least", "max_values"), CHUNKED)
def test_chunks_hold_no_more_than_was_asked_for(layer, x, least, max_values):
    """least: the values of one sample, positions times d_in, below which no chunk can be."""
    layer, x = layer.double(), x.double()
    chunks = list(LayerView(layer).row_chunks(x, layer(x), 0, max_values))
    assert all(A.numel() <= max(max_values, least) for A, _ in chunks)
    assert check_equation(layer, x, max_values) == len(chunks) == -(-len(x) // max(1, max_values // least))


LAYERS = {
    "linear": lambda: nn.Linear(5, 4),
    "linear without bias": lambda: nn.Linear(5, 4, bias=False),
    "conv": lambda: nn.Conv2d(3, 4, (3, 2)),
    "grouped": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "channels last": lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
    "grouped, channels last": lambda: nn.Conv2d(4, 6, 3, groups=2).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("make", list(LAYERS.values()), ids=list(LAYERS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_write_what_was_read_changes_nothing(make, dtype):
    view = LayerView(make().to(dtype))
    before = {name: t.clone() for name, t in view.layer.state_dict().items()}
    for group in range(view.groups):
        view.write(view.matrix(group), view.bias(group), group)
    for name, tensor in view.layer.state_dict().items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("make", list(LAYERS.values()), ids=list(LAYERS))
def test_read_what_was_written(make):
    view = LayerView(make())
    wanted = [
        (torch.randn_like(view.matrix(g)), None if view.bias(g) is None else torch.randn_like(view.bias(g)))
        for g in range(view.groups)
    ]
    for group, (U, bias) in enumerate(wanted):
        view.write(U, bias, group)
    for group, (U, bias) in enumerate(wanted):
        assert torch.equal(view.matrix(group), U)
        if bias is not None:
            assert torch.equal(view.bias(group), bias)


def test_matrix_and_bias_are_copies_in_the_dtype_to_solve_in():
    view = LayerView(nn.Linear(3, 2))
    before = view.weight.detach().clone(), view.layer.bias.detach().clone()
    view.matrix().zero_()
    view.bias().zero_()
    assert torch.equal(view.weight, before[0])
    assert torch.equal(view.layer.bias, before[1])
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        wanted = torch.float64 if dtype == torch.float64 else torch.float32
        assert LayerView(nn.Linear(3, 2).to(dtype)).matrix().dtype == wanted


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.Conv1d(2, 3, 1), nn.ConvTranspose2d(2, 3, 1), nn.BatchNorm1d(3)])
def test_anything_else_is_refused_by_name(layer):
    kind = type(layer).__name__
    with pytest.raises(ModelError, match=f"layer 'encoder.1' must be a Linear or a Conv2d, got {kind}"):
        LayerView(layer, "encoder.1")


def test_a_computed_weight_is_refused_because_writing_to_it_would_be_lost():
    with pytest.raises(ModelError, match="layer 'fc1' must hold its weight as a plain parameter"):
        LayerView(parametrizations.weight_norm(nn.Linear(3, 2)), "fc1")
