"""rows @ matrix + bias = output rows, in float64, over everything a Linear or a convolution can be set to."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from feta.errors import ModelError
from feta.layers import LayerView, prunable_names
from nets import caught

EVERYTHING = 2**40


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def output_rows(view: LayerView, z: torch.Tensor, group: int = 0) -> torch.Tensor:
    """The reference: channels last, one row per position."""
    if view.weight.ndim == 2:
        return z.reshape(-1, z.shape[-1])
    z = z if z.ndim == view.weight.ndim else z[None]
    width = z.shape[1] // view.groups
    return z[:, group * width : (group + 1) * width].movedim(1, -1).reshape(-1, width)


def chunks_of(layer: nn.Module, x: torch.Tensor, max_values: int = EVERYTHING, group: int = 0):
    """The layer as its operator was seen, and its rows in chunks of inputs and outputs."""
    view, (call,) = caught(layer, x)
    x, z = (view.batched(t) if view.operator.spatial else t.reshape(-1, t.shape[-1]) for t in (call.x, call.z))
    parts = view.chunks(x, max_values)
    return view, [(view.input_rows(x[part], group), view.output_rows(z[part], group)) for part in parts]


def check_equation(layer: nn.Module, x: torch.Tensor, max_values: int = EVERYTHING) -> int:
    """Compare with the layer itself; the number of chunks it took."""
    layer, x = layer.double(), x.double()
    chunks, groups = [], LayerView.of(layer, "").groups
    for group in range(groups):
        view, chunks = chunks_of(layer, x, max_values, group)
        A, Z = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        bias = view.bias(group)
        assert A.shape[1] == view.matrix(group).shape[0] == view.d_in
        torch.testing.assert_close(Z, output_rows(view, layer(x), group), rtol=0, atol=0)
        torch.testing.assert_close(A @ view.matrix(group) + (0 if bias is None else bias), Z)
        check_picked(layer, x, group, A, Z)
    return len(chunks)


def check_picked(layer: nn.Module, x: torch.Tensor, group: int, A: torch.Tensor, Z: torch.Tensor) -> None:
    """Some rows alone are those of all of them."""
    view, (call,) = caught(layer, x)
    picked = torch.randperm(len(A))[: max(1, len(A) // 3)]
    assert torch.equal(view.input_rows(view.batched(call.x), group, picked), A[picked])
    assert torch.equal(view.output_rows(view.batched(call.z), group, picked), Z[picked])


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


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    "settings", [{"padding": 1}, {"padding": "same", "dilation": 2}, {"padding": 2, "stride": 2}]
)
def test_one_and_three_dimensions(mode, settings):
    check_equation(nn.Conv1d(4, 6, 3, groups=2, padding_mode=mode, **settings), torch.randn(2, 4, 9))
    check_equation(nn.Conv3d(2, 4, 3, groups=2, padding_mode=mode, **settings), torch.randn(2, 2, 5, 6, 7))


@pytest.mark.parametrize("settings", [{}, {"stride": (1, 2, 3)}, {"dilation": (2, 1, 1)}, {"padding": (0, 1, 2)}])
def test_each_dimension_has_its_own(settings):
    check_equation(nn.Conv3d(2, 3, (2, 3, 1), **settings), torch.randn(2, 2, 5, 6, 7))


@pytest.mark.parametrize(("groups", "inputs", "outputs"), [(2, 4, 6), (4, 4, 4), (3, 6, 3), (4, 4, 8)])
@pytest.mark.parametrize("bias", [True, False])
def test_groups(groups, inputs, outputs, bias):
    layer = nn.Conv2d(inputs, outputs, (3, 2), padding=1, groups=groups, bias=bias)
    check_equation(layer, torch.randn(3, inputs, 6, 5))


def test_a_single_image_without_a_batch_and_channels_last():
    check_equation(nn.Conv2d(3, 4, 3), torch.randn(3, 6, 5))
    check_equation(nn.Conv1d(3, 4, 3), torch.randn(3, 6))
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
    _, chunks = chunks_of(layer, x, max_values)
    assert all(A.numel() <= max(max_values, least) for A, _ in chunks)
    assert check_equation(layer, x, max_values) == len(chunks) == -(-len(x) // max(1, max_values // least))


class Conv1D(nn.Module):
    """As in transformers: a matrix product whose weight is held as (d_in, d_out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


LAYERS = {
    "linear": lambda: nn.Linear(5, 4),
    "linear without bias": lambda: nn.Linear(5, 4, bias=False),
    "conv": lambda: nn.Conv2d(3, 4, (3, 2)),
    "grouped": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "channels last": lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
    "grouped, channels last": lambda: nn.Conv2d(4, 6, 3, groups=2).to(memory_format=torch.channels_last),
    "conv 1d": lambda: nn.Conv1d(4, 6, 3, groups=2),
    "conv 3d": lambda: nn.Conv3d(2, 4, (1, 2, 3)),
    "transposed": lambda: Conv1D(4, 5),
}


@pytest.mark.parametrize("make", list(LAYERS.values()), ids=list(LAYERS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_write_what_was_read_changes_nothing(make, dtype):
    layer = make().to(dtype)
    view = LayerView.of(layer, "")
    before = {name: t.clone() for name, t in layer.state_dict().items()}
    for group in range(view.groups):
        view.write(view.matrix(group), view.bias(group), group)
    for name, tensor in layer.state_dict().items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("make", list(LAYERS.values()), ids=list(LAYERS))
def test_read_what_was_written(make):
    view = LayerView.of(make(), "")
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
    view = LayerView.of(nn.Linear(3, 2), "")
    before = view.weight.detach().clone(), view.bias_parameter.detach().clone()
    view.matrix().zero_()
    view.bias().zero_()
    assert torch.equal(view.weight, before[0])
    assert torch.equal(view.bias_parameter, before[1])
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        wanted = torch.float64 if dtype == torch.float64 else torch.float32
        assert LayerView.of(nn.Linear(3, 2).to(dtype), "").matrix().dtype == wanted


def test_a_weight_held_the_other_way_round():
    check_equation(Conv1D(4, 5), torch.randn(2, 3, 5))
    view = LayerView.of(layer := Conv1D(4, 5), "")
    assert (view.d_in, view.d_out) == (5, 4)
    assert torch.equal(view.matrix(), layer.weight)


def test_names_are_dotted_and_attention_has_two():
    attention = nn.MultiheadAttention(4, 2)
    model = nn.ModuleDict({"conv": nn.Conv1d(1, 2, 3), "c1": Conv1D(4, 5), "attention": attention, "relu": nn.ReLU()})
    assert prunable_names(model) == ["conv", "c1", "attention.in_proj", "attention.out_proj"]
    assert prunable_names(attention) == ["in_proj", "out_proj"]
    view = LayerView.of(model, "attention.in_proj")
    assert view.weight is attention.in_proj_weight
    assert view.bias_parameter is attention.in_proj_bias
    view.write(torch.zeros(4, 12), torch.ones(12))
    assert not attention.in_proj_weight.any()
    assert bool((attention.in_proj_bias == 1).all())
    assert prunable_names(nn.MultiheadAttention(4, 2, kdim=3)) == ["out_proj"]  # three weights of their own


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.ConvTranspose2d(2, 3, 1), nn.BatchNorm1d(3), nn.LSTM(2, 2)])
def test_anything_else_is_refused_by_name(layer):
    model = nn.ModuleDict({"encoder": nn.Sequential(nn.ReLU(), layer)})
    kind = type(layer).__name__
    message = f"layer 'encoder.1' must be a Linear, a convolution or a self-attention, got {kind}"
    with pytest.raises(ModelError, match=message):
        LayerView.of(model, "encoder.1")


def test_a_computed_weight_is_refused_because_writing_to_it_would_be_lost():
    model = nn.ModuleDict({"fc1": parametrizations.weight_norm(nn.Linear(3, 2))})
    with pytest.raises(ModelError, match="layer 'fc1' must hold its weight as a plain parameter"):
        LayerView.of(model, "fc1")
