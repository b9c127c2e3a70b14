"""2:4 layers: what they hold, on every device; torch's own product stands behind `packed`, here a dense one."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from feta.inference import candidates, two_four
from feta.inference.candidates import CANDIDATES
from feta.inference.choose import Chooser
from feta.inference.sparsify import sparsified
from feta.inference.two_four import TwoFourLinear, encode, is_two_four
from feta.inference.whole import bytes_of
from sparse_layers import FakeTimer

CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def two_four_layer(d_in: int, d_out: int, bias: bool = True, dtype: torch.dtype = torch.float16) -> nn.Linear:
    """Random, with groups of two, one and none."""
    generator = torch.Generator().manual_seed(d_in + d_out)
    layer = nn.Linear(d_in, d_out, bias)
    weight = torch.randn(d_out, d_in // 4, 4, generator=generator)
    keep = torch.rand(weight.shape, generator=generator).topk(2).indices
    mask = torch.zeros_like(weight).scatter_(2, keep, 1.0)
    mask[0, 0], mask[0, 1] = 0, torch.tensor([0.0, 0.0, 0.0, 1.0])
    mask[1, 0], mask[1, 1] = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 1.0, 0.0])
    with torch.no_grad():
        layer.weight.copy_((weight * mask).flatten(1))
    return layer.requires_grad_(False).to(dtype)


@pytest.fixture
def by_a_dense_product(monkeypatch):
    """As if torch could do it here; what was asked for."""
    asked: list[Tensor] = []

    def stand_in(weight: Tensor) -> Tensor:
        asked.append(weight)
        return weight.clone()

    for module in (two_four, candidates):
        monkeypatch.setattr(module, "works", lambda device, dtype: dtype in two_four.KINDS)
    monkeypatch.setattr(two_four, "packed", stand_in)
    return asked


@DTYPES
@pytest.mark.parametrize("shape", [(64, 32), (128, 96), (640, 32)])
def test_the_weights_come_back(dtype, shape):
    layer = two_four_layer(*shape, dtype=dtype)
    assert is_two_four(layer.weight)
    assert torch.equal(TwoFourLinear(layer).weight, layer.weight)


def test_every_group_of_two_of_four():
    """All 11 masks of a group with at most two, against the definition."""
    masks = [[float(number >> bit & 1) for bit in range(4)] for number in range(16) if number.bit_count() <= 2]
    weight = torch.tensor(masks * 2).flatten()[None] * torch.arange(1, 89)
    values, places = encode(weight)
    assert values.shape == (1, 44)
    assert places.shape == (1, 11)
    rebuilt = torch.zeros(22, 4)
    for group in range(22):
        half = int(places[0, group // 2]) >> 4 * (group % 2) & 15
        rebuilt[group, half & 3] += values[0, 2 * group]
        rebuilt[group, half >> 2] += values[0, 2 * group + 1]
        assert half & 3 < half >> 2  # in order and apart, as torch wants them
    assert torch.equal(rebuilt.flatten()[None], weight)


@pytest.mark.parametrize("place", [(0, 0), (31, 63)])
def test_a_third_weight_in_a_group_is_seen(place):
    layer = two_four_layer(64, 32)
    group = layer.weight[place[0], place[1] // 4 * 4 :][:4]
    group.copy_(torch.tensor([1.0, 2.0, 3.0, 0.0]))
    assert not is_two_four(layer.weight)


@pytest.mark.parametrize("shape", [(64, 31), (60, 32), (32, 32), (64, 16), (64, 0)])
def test_shapes_that_torch_does_not_take(shape):
    assert not is_two_four(torch.zeros(shape[1], shape[0]))


@DTYPES
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(64,), (1, 64), (3, 64), (2, 3, 64), (0, 64)])
def test_outputs(dtype, bias, shape, by_a_dense_product):
    layer, x = two_four_layer(64, 32, bias, dtype), torch.randn(shape).to(dtype)
    y = TwoFourLinear(layer)(x)
    assert y.shape == (*shape[:-1], 32)
    assert y.is_contiguous()
    assert torch.equal(y, layer(x))


def test_rows_reach_torch_in_one_piece(by_a_dense_product, monkeypatch):
    seen = []
    monkeypatch.setattr(two_four.F, "linear", lambda x, *rest: seen.append(x) or x.new_zeros(len(x), 32))
    wide = torch.randn(6, 128).half()
    TwoFourLinear(two_four_layer(64, 32))(wide[:, ::2])
    assert (seen[0].shape, seen[0].is_contiguous()) == ((6, 64), True)


def test_without_a_gpu_it_says_what_the_dense_layer_says():
    layer, x = two_four_layer(64, 32), torch.randn(5, 64).half()
    form = TwoFourLinear(layer)
    assert torch.equal(form(x), layer(x))
    assert torch.equal(form.float()(x.float()), F.linear(x.float(), layer.weight.float(), layer.bias.float()))


def test_copies_saves_and_loads(by_a_dense_product):
    layer, x = two_four_layer(64, 32), torch.randn(2, 64).half()
    form = TwoFourLinear(layer)
    y = form(x)
    twin, told = copy.deepcopy(form), pickle.loads(pickle.dumps(form))
    form.values.zero_()
    assert torch.equal(twin(x), y)
    assert torch.equal(told(x), y)
    form.load_state_dict(twin.state_dict())
    assert torch.equal(form(x), y)  # the plan of the zeros is gone


def test_it_takes_little_more_than_half_at_rest(by_a_dense_product):
    layer = two_four_layer(1024, 512, bias=False)
    form = TwoFourLinear(layer)
    assert bytes_of(form) == 9 / 16 * layer.weight.nbytes
    form(torch.randn(1, 1024).half())
    form._plan.packed = torch.zeros(100, dtype=torch.float16)  # what torch's form has
    assert bytes_of(form) == 9 / 16 * layer.weight.nbytes + 200


def test_it_is_a_candidate_where_torch_can_do_it(by_a_dense_product):
    layer, build = two_four_layer(64, 32), CANDIDATES["2:4"]
    assert isinstance(build(layer, CPU, torch.float16), TwoFourLinear)
    assert build(layer.float(), CPU, torch.float32) is None
    assert build(nn.Conv2d(3, 4, 3), CPU, torch.float16) is None
    layer = layer.half()
    layer.weight[5, :4] = 1
    assert build(layer, CPU, torch.float16) is None


def test_it_is_no_candidate_without_a_gpu():
    assert CANDIDATES["2:4"](two_four_layer(64, 32), CPU, torch.float16) is None
    assert not two_four.works(CPU, torch.float16)


def test_it_is_chosen_where_it_is_faster(by_a_dense_product):
    model = nn.Sequential(two_four_layer(64, 64), nn.ReLU(), two_four_layer(64, 32, bias=False))
    x = torch.randn(16, 64).half()
    found = sparsified(model, x, timer=FakeTimer(**{"2:4": 0.5, "sparse": 0.5}))
    assert [layer.kind for layer in found.layers] == ["2:4", "2:4"]
    assert torch.equal(found.model(x), model(x))
    slow = sparsified(model, x, timer=FakeTimer(**{"2:4": 0.95}))
    assert [layer.kind for layer in slow.layers] == ["dense", "dense"]


def test_layers_of_as_many_zeros_that_are_not_two_four_look_different(by_a_dense_product):
    layer, inputs = two_four_layer(64, 32), {1: torch.randn(1, 64).half()}
    other = copy.deepcopy(layer)
    other.weight.copy_(layer.weight.roll(2, 1))
    assert not is_two_four(other.weight)
    chooser = Chooser(FakeTimer(**{"2:4": 0.5}))
    assert chooser.choose(layer, inputs)[0].kind == "2:4"
    assert chooser.choose(other, inputs)[0].kind == "dense"
