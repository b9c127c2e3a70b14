"""Every way in which a network reads a weight is seen, and the rows are those of the operator, in float64."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from feta.calibration.model import fused_attention_off
from feta.calibration.operators import attention, reading_of
from feta.layers import Operator
from nets import caught, traced


def check_rows(model: nn.Module, batch, name: str, calls: int = 1) -> None:
    """rows @ matrix + bias = output rows, of every call and group."""
    view, seen = caught(model, batch, name)
    assert len(seen) == calls
    for call in seen:
        for group in range(view.groups):
            A, Z = view.input_rows(view.batched(call.x), group), view.output_rows(view.batched(call.z), group)
            bias = view.bias(group)
            assert A.dtype == Z.dtype == torch.float64
            torch.testing.assert_close(A @ view.matrix(group) + (0 if bias is None else bias), Z)


class Calls(nn.Module):
    """A layer, and a function that calls it, or its weight alone, in some way."""

    def __init__(self, layer: nn.Module, forward) -> None:
        super().__init__()
        self.layer, self._forward = layer, forward

    def forward(self, x):
        return self._forward(self.layer, x)


LINEAR = {
    "module": lambda m, x: m(x),
    "module by keyword": lambda m, x: m(input=x),
    "positional": lambda m, x: F.linear(x, m.weight, m.bias),
    "by keyword": lambda m, x: F.linear(x, weight=m.weight, bias=m.bias),
    "all by keyword": lambda m, x: F.linear(bias=m.bias, weight=m.weight, input=x),
}


@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4), (4,)])
@pytest.mark.parametrize("forward", list(LINEAR.values()), ids=list(LINEAR))
def test_linear(forward, shape):
    model = Calls(nn.Linear(4, 3), forward).double()
    check_rows(model, torch.randn(shape).double(), "layer")
    assert traced(model, torch.randn(shape))["layer"].operator == Operator()


def test_a_weight_that_is_read_without_its_bias():
    view, (call,) = caught(
        Calls(nn.Linear(4, 3), lambda m, x: F.linear(x, m.weight)).double(), torch.randn(5, 4).double(), "layer"
    )
    torch.testing.assert_close(call.x @ view.matrix(), call.z)


CONVOLUTIONS = {
    "module": lambda m, x: m(x),
    "positional": lambda m, x: F.conv2d(x, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups),
    "numbers": lambda m, x: F.conv2d(x, m.weight, m.bias, 2, 1, 1, 2),
    "by keyword": lambda m, x: F.conv2d(x, weight=m.weight, bias=m.bias, groups=2, stride=[2], padding=(1, 1)),
    "torch": lambda m, x: torch.conv2d(x, m.weight, m.bias, stride=(2, 2), padding="valid", groups=2),
}


@pytest.mark.parametrize("forward", list(CONVOLUTIONS.values()), ids=list(CONVOLUTIONS))
def test_convolutions(forward):
    model = Calls(nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), forward).double()
    check_rows(model, torch.randn(2, 4, 7, 6).double(), "layer")


def test_a_weight_that_another_call_reads_with_other_arguments():
    """The call counts, not what the module was made with."""
    model = Calls(nn.Conv1d(2, 3, 3), lambda m, x: F.conv1d(x, m.weight, m.bias, padding=1, dilation=2)).double()
    check_rows(model, torch.randn(2, 2, 9).double(), "layer")


class Padding(nn.Conv2d):
    """As in timm: padded on one side, by the input's size, before a convolution without padding."""

    def forward(self, x):
        x = F.pad(x, [0, 1, 1, 2], value=0.5)
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def test_a_convolution_that_pads_in_its_own_forward():
    model = nn.Sequential(Padding(2, 4, 3, padding=1, groups=2), nn.ReLU()).double()
    check_rows(model, torch.randn(2, 2, 5, 6).double(), "0")
    assert traced(model, torch.randn(2, 2, 5, 6))["0"].operator.padding == (0, 0)


class Standardised(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight - self.weight.mean(), self.bias)


def test_a_computed_weight_is_not_taken_for_the_layers_own():
    assert traced(nn.Sequential(Standardised(2, 3, 3)), torch.randn(2, 2, 5, 5)) == {}


class Conv1D(nn.Module):
    """As in transformers."""

    def __init__(self, nf: int, nx: int, forward) -> None:
        super().__init__()
        self.nf, self._forward = nf, forward
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x):
        return self._forward(self, x.view(-1, x.size(-1))).view(*x.shape[:-1], self.nf)


ADDMM = {
    "positional": lambda m, x: torch.addmm(m.bias, x, m.weight),
    "by keyword": lambda m, x: torch.addmm(m.bias, mat1=x, mat2=m.weight),
    "method": lambda m, x: m.bias.addmm(x, m.weight),
}


@pytest.mark.parametrize("forward", list(ADDMM.values()), ids=list(ADDMM))
def test_conv1d_of_transformers(forward):
    model = nn.Sequential(Conv1D(6, 4, forward), nn.ReLU()).double()
    check_rows(model, torch.randn(2, 3, 4).double(), "0")
    assert traced(model, torch.randn(2, 3, 4))["0"].operator == Operator(transposed=True)


def test_one_weight_in_two_modules_is_one_layer():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    model = nn.Sequential(first, nn.ReLU(), second).double()
    view, (one, two) = caught(model, torch.randn(3, 4).double(), "0")
    for call in (one, two):  # each has its own bias, so that the layer has none
        torch.testing.assert_close(call.x @ view.matrix(), call.z)
    assert view.bias() is None
    second.bias = first.bias
    view, calls = caught(model, torch.randn(3, 4).double(), "0")
    for call in calls:
        torch.testing.assert_close(call.x @ view.matrix() + view.bias(), call.z)


def test_one_kernel_in_two_modules_with_biases_of_their_own():
    first, second = nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.Conv2d(3, 3, 3, padding=1, groups=3)
    second.weight = first.weight
    view, calls = caught(nn.Sequential(first, nn.ReLU(), second).double(), torch.randn(2, 3, 4, 4).double(), "0")
    for call, group in product(calls, range(3)):
        expected = view.output_rows(call.z, group)
        torch.testing.assert_close(view.input_rows(call.x, group) @ view.matrix(group), expected)


def test_what_reads_no_weight():
    x = torch.randn(2, 4)
    assert reading_of(torch.relu, (x,), {}) is None
    assert reading_of(F.linear, (x,), {"weight": None}) is None
    assert reading_of(F.conv2d, (), {}) is None


# Attention


class SelfAttention(nn.Module):
    def __init__(self, **options) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, **options)
        for bias in (self.attention.in_proj_bias, self.attention.out_proj.bias):
            if bias is not None:
                nn.init.normal_(bias)

    def forward(self, x, key_padding_mask=None, **how):
        return self.attention(x, x, x, key_padding_mask=key_padding_mask, **how)


OPTIONS = [{}, {"batch_first": True}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}]
HOW = [{}, {"need_weights": False}, {"average_attn_weights": False}]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_self_attention_is_seen_as_two_products_and_gives_what_it_gave(options, masked, how):
    model = SelfAttention(**options).double().eval()
    x = torch.randn(5, 5, 6).double()
    batch = {"x": x, **how}
    if masked:
        batch["key_padding_mask"] = torch.arange(5)[None] >= torch.tensor([5, 3, 4, 1, 5])[:, None]
    assert list(traced(model, batch)) == ["attention.in_proj", "attention.out_proj"]
    check_rows(model, batch, "attention.in_proj")
    check_rows(model, batch, "attention.out_proj")
    with torch.no_grad():
        expected, weights = model(**batch)
        from_tap = _whole(model, batch)
    torch.testing.assert_close(from_tap[0], expected)
    assert (weights is None) == (from_tap[1] is None)
    if weights is not None:
        torch.testing.assert_close(from_tap[1], weights)


class _Decomposed(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.multi_head_attention_forward:
            return attention(self, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _whole(model: nn.Module, batch):
    with _Decomposed():
        return model(**batch)


def test_a_causal_mask_without_a_batch():
    model = SelfAttention().double().eval()
    mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    batch = {"x": torch.randn(4, 6).double(), "attn_mask": mask}
    check_rows(model, batch, "attention.in_proj")
    check_rows(model, batch, "attention.out_proj")
    torch.testing.assert_close(_whole(model, batch)[0], model(**batch)[0])


def test_gradients_go_through_the_decomposed_attention():
    model = SelfAttention().double().eval()
    x = torch.randn(4, 2, 6).double()
    wanted = list(model.parameters())
    expected = torch.autograd.grad(model(x)[0].square().sum(), wanted)
    found = torch.autograd.grad(_whole(model, {"x": x})[0].square().sum(), wanted)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("key", ["other", "copy"])
def test_cross_attention_has_no_one_input(key):
    class Cross(SelfAttention):
        def forward(self, x):
            return self.attention(x, y := x.flip(0) if key == "other" else x.clone(), y)[0]

    model, x = Cross().double().eval(), torch.randn(4, 2, 6).double()
    assert list(traced(model, x)) == ["attention.out_proj"]
    check_rows(model, x, "attention.out_proj")


def test_separate_projections_are_not_seen_as_one():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2, kdim=4, vdim=5)

        def forward(self, x):
            return self.attention(x, x[..., :4], x[..., :5])[0]

    model, x = Wide().double().eval(), torch.randn(4, 2, 6).double()
    assert list(traced(model, x)) == ["attention.out_proj"]
    check_rows(model, x, "attention.out_proj")


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_a_transformer_encoder(norm_first, masked):
    layer = nn.TransformerEncoderLayer(6, 2, 10, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    batch = {"src": torch.randn(3, 4, 6).double()}
    if masked:
        batch["src_key_padding_mask"] = torch.arange(4)[None] >= torch.tensor([4, 2, 3])[:, None]
    names = ["self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2"]
    with fused_attention_off():
        found = traced(model, batch)
        assert list(found) == [f"layers.{i}.{name}" for i in range(2) for name in names]
        for name in found:
            check_rows(model, batch, name)
    assert str(found["layers.0.linear1"].activation) == "relu"
    assert found["layers.0.linear2"].follow.shortcut
