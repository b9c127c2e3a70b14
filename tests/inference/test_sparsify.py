"""sparsify as a whole: what is replaced, what is left, and when the dense layers stay."""

import copy
import io
import pickle
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import feta
from feta.errors import ConfigError, ModelError
from feta.files.exports import export
from feta.inference import calls
from feta.inference.chain import Chain
from feta.inference.convolution import SparseConv2d
from feta.inference.csr import CsrLinear
from feta.inference.example import of_size
from feta.inference.sparsify import NO_NUMBA, sparsified
from feta.inference.trimmed import TrimmedLinear
from sparse_layers import FakeTimer, relative, zeroed

OWN = pytest.mark.skipif(calls.kernels() is None, reason="numba is not installed")
FAST = {"groups": 0.1, "chain": 0.1, "sparse": 0.1, "parts": 0.2}
CSR = {"csr": 0.1, "sparse": 0.1, "chain": 9.0}


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (
        nn.Flatten(),
        nn.Linear(30, 40),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(40, 50),
        nn.ReLU(),
        nn.Linear(50, 6),
    )
    return zeroed(nn.Sequential(*layers), 0.8)


class Forked(nn.Module):
    """ReLUs as functions, one layer used twice, one never, a convolution, and a norm."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 8, 3, padding=1)
        self.inner, self.out, self.unused = nn.Linear(32, 32), nn.Linear(32, 5), nn.Linear(3, 3)
        self.again = self.inner
        self.norm = nn.LayerNorm(32)
        zeroed(self, 0.7)

    def forward(self, x, shift=None):
        x = F.relu(self.conv(x)).mean(3).flatten(1)
        x = self.norm(F.relu(self.inner(x))) + F.gelu(self.again(x))
        return {"y": self.out(x if shift is None else x + shift)}


@OWN
def test_neighbours_become_one_chain():
    model, x = mlp(), torch.randn(7, 5, 6)
    found = sparsified(model, x, (1, 7), timer=FakeTimer(**FAST))
    assert [type(module) for module in found.model] == [nn.Flatten, Chain]
    assert len(found.model[1].layers) == 3
    model.eval()
    for batch in (1, 2, 16, 20):
        rows = torch.randn(batch, 5, 6)
        assert relative(found.model(rows), model(rows).double()) < 1e-5
    assert (found.sparse_ms, found.dense_ms) == ({1: 0.1, 7: 0.1}, {1: 1.0, 7: 1.0})
    assert found.bytes < found.dense_bytes
    assert found.joined == 6  # three layers, with what stands between them


@OWN
def test_a_chain_that_is_not_faster_is_not_made():
    found = sparsified(mlp(), torch.randn(7, 30), timer=FakeTimer(**{**FAST, "chain": 0.3}))
    assert [type(module) for module in found.model if not isinstance(module, nn.ReLU | nn.Dropout)] == [
        nn.Flatten,
        *[Chain] * 3,
    ]


@OWN
def test_a_model_of_ones_own():
    model = Forked()
    x = torch.randn(3, 2, 4, 6)
    found = sparsified(model, {"x": x, "shift": torch.ones(3, 32)}, (1, 3), timer=FakeTimer(**FAST))
    made = found.model
    assert isinstance(made.conv, SparseConv2d)
    assert isinstance(made.inner, Chain)
    assert made.again is made.inner
    assert type(made.unused) is nn.Linear  # never called
    assert [layer.name for layer in found.layers] == ["conv", "inner", "out"]
    assert relative(made(x)["y"], model(x)["y"].double()) < 1e-5


def test_the_given_model_is_untouched():
    model = Forked().train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    made = sparsified(model, torch.randn(2, 2, 4, 6), timer=FakeTimer(**CSR)).model
    assert model.training
    assert isinstance(model.inner, nn.Linear)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert isinstance(made.inner, CsrLinear)
    assert not made.training


@pytest.mark.parametrize("times", [FAST, CSR], ids=["own kernels", "csr"])
def test_the_result_copies_saves_loads_and_refuses_training(times):
    if times is FAST and calls.kernels() is None:
        pytest.skip("numba is not installed")
    x = torch.randn(4, 30)
    made = sparsified(mlp(), x, timer=FakeTimer(**times)).model
    y = made(x)
    assert torch.equal(copy.deepcopy(made)(x), y)
    buffer = io.BytesIO()
    torch.save(made, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), y)
    other = sparsified(mlp(), x, timer=FakeTimer(**times)).model
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(x), y)
    assert relative(made.double()(x.double()), y.double()) < 1e-5
    with pytest.raises(ModelError, match="inference alone"):
        made.train()


def test_what_others_do_with_weights_is_refused(tmp_path):
    """A file of it would fit no model, and there is no weight left to prune or to export."""
    x = torch.randn(4, 30)
    made = sparsified(mlp(), x, timer=FakeTimer(**CSR)).model
    ways = [lambda: feta.save(made, tmp_path / "net.safetensors"), lambda: feta.prune(made, x, method="threshold")]
    ways += [lambda: export(made, x, safetensors=tmp_path / "net.safetensors")]
    for way in ways:
        with pytest.raises(ModelError, match=r"must be made of plain layers, got one that feta\.sparsify made; give"):
            way()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sparse", [1.0, 1.2])
def test_dense_layers_stay_where_the_whole_is_not_faster(sparse):
    model = mlp().eval()
    found = sparsified(model, torch.randn(4, 30), timer=FakeTimer(csr=0.1, groups=0.1, sparse=sparse, chain=0.1))
    assert found.notes == ["the dense layers stay: the whole model was not faster with sparse ones"]
    assert [type(a) for a in found.model] == [type(b) for b in model]
    assert found.bytes == found.dense_bytes
    assert found.model is not model


def test_dense_layers_stay_where_outputs_differ(monkeypatch):
    monkeypatch.setattr(CsrLinear, "fast", lambda self, x, plan: x.new_ones(len(x), self.out_features))
    found = sparsified(mlp(), torch.randn(4, 30), timer=FakeTimer(**CSR))
    assert "outputs differed by" in found.notes[0]
    assert all(type(module) is not CsrLinear for module in found.model)


def test_a_model_without_zeros_comes_back_dense():
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    with pytest.warns(feta.PruneWarning, match="the dense layers stay: no layer has the 30 % zeros .* at most 0 %"):
        made = feta.sparsify(model, torch.randn(3, 5))
    assert [type(module) for module in made] == [nn.Linear, nn.ReLU, nn.Linear]
    assert not any(parameter.requires_grad for parameter in made.parameters())


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (zeroed(nn.Linear(30, 20), 0.8), "each was measured to be fastest as it is; more zeros"),
        (nn.Bilinear(30, 30, 3), "no Linear or Conv2d without hooks is called"),
    ],
)
def test_where_nothing_was_replaced_a_note_says_why(model, why):
    x = torch.randn(4, 30)
    example = (x, x) if isinstance(model, nn.Bilinear) else x
    slow = dict.fromkeys(("groups", "chain", "csr", "trimmed", "parts", "bitmap"), 9.0)
    (note,) = [note for note in sparsified(model, example, timer=FakeTimer(**slow)).notes if note != NO_NUMBA]
    assert note.startswith(f"the dense layers stay: {why}")


def test_a_bare_layer_and_masks_that_are_held():
    layer = zeroed(nn.Linear(30, 20), 0.8)
    made = sparsified(layer, torch.randn(2, 30), timer=FakeTimer(**CSR)).model
    assert isinstance(made, CsrLinear)
    held = nn.Sequential(copy.deepcopy(layer), nn.ReLU())
    feta.hold_zeros(held, feta.masks_of(held))
    made = sparsified(held, torch.randn(2, 30), timer=FakeTimer(**CSR)).model
    assert isinstance(made[0], CsrLinear)
    x = torch.randn(5, 30)
    assert relative(made(x), layer(x).relu().double()) < 1e-5


@OWN
def test_the_dead_are_taken_out_and_large_models_are_timed_cold():
    model = mlp()
    with torch.no_grad():
        model[1].weight[:25] = 0
    timer = FakeTimer(**FAST)
    found = sparsified(model, torch.randn(4, 30), timer=timer)
    assert found.dead_neurons >= 25
    assert {cold for _, cold in timer.seen} == {False}
    timer = FakeTimer(**FAST)
    sparsified(zeroed(nn.Sequential(nn.Linear(3000, 3000)), 0.9), torch.randn(1, 3000), timer=timer)
    assert [cold for _, cold in timer.seen] == [True, False]


def test_an_encoder_layer_that_reads_its_layers_weights():
    torch.manual_seed(0)
    model = zeroed(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 0.6).eval()
    x = torch.randn(2, 3, 16)
    made = sparsified(model, x, timer=FakeTimer(**CSR)).model
    assert isinstance(made.linear1, CsrLinear)
    with torch.no_grad():
        assert relative(made(x), model(x).double()) < 1e-5


PADDINGS = {
    "none": {},
    "ends": {"src_key_padding_mask": torch.arange(6) >= torch.tensor([[6], [3], [2], [5]])},
    "numbers": {"src_key_padding_mask": torch.zeros(4, 6).masked_fill(torch.arange(6) > 3, -torch.inf)},
    "starts": {"src_key_padding_mask": torch.arange(6) < torch.tensor([[0], [3], [2], [5]])},
    "causal": {
        "src_key_padding_mask": torch.arange(6) >= torch.tensor([[6], [3], [2], [5]]),
        "mask": torch.ones(6, 6, dtype=torch.bool).triu(1),
    },
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("norm", [None, nn.LayerNorm(16)], ids=["plain", "norm"])
@pytest.mark.parametrize("seen", list(PADDINGS.values()), ids=list(PADDINGS))
def test_an_encoder_that_packs_padded_samples_runs_its_sparse_layers_and_gives_the_same(seen, norm, monkeypatch):
    """torch's own encoder as it comes: padding is zeros where samples were packed, and anything elsewhere."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = zeroed(nn.TransformerEncoder(layer, 2, norm=norm), 0.6).eval()
    x = torch.randn(4, 6, 16)
    found = sparsified(model, {"src": x, **seen}, timer=FakeTimer(**CSR))
    assert found.notes == []
    fast = pickle.loads(pickle.dumps(copy.deepcopy(found.model)))
    assert [type(layer.linear1) for layer in fast.layers] == [CsrLinear] * 2
    monkeypatch.setattr(CsrLinear, "weight", property(lambda self: pytest.fail("the dense weight was made")))
    with torch.inference_mode():
        for padding in PADDINGS.values():
            torch.testing.assert_close(fast(x, **padding), model(x, **padding), rtol=1e-4, atol=1e-5)


def test_layers_with_hooks_are_left_alone():
    model = nn.Sequential(zeroed(nn.Linear(30, 20), 0.8), nn.ReLU(), zeroed(nn.Linear(20, 10), 0.8))
    model[0].register_forward_hook(lambda module, args, output: output + 1)
    found = sparsified(model, torch.randn(2, 30), timer=FakeTimer(**CSR))
    assert [type(module) for module in found.model] == [nn.Linear, nn.ReLU, CsrLinear]
    x = torch.randn(5, 30)
    assert relative(found.model(x), model(x).double()) < 1e-5


def test_without_numba(monkeypatch):
    monkeypatch.setattr(calls, "kernels", lambda: None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        feta.sparsify(mlp(), torch.randn(2, 30))
    assert "need numba" in str(said[0].message)
    assert NO_NUMBA not in sparsified(nn.Linear(3, 3), torch.randn(2, 3), timer=FakeTimer()).notes  # nothing to gain
    found = sparsified(mlp(), torch.randn(2, 30), timer=FakeTimer(**CSR))
    assert found.notes == [NO_NUMBA]
    assert {layer.kind for layer in found.layers} == {"csr"}


def test_numba_is_not_loaded_before_it_is_needed():
    script = "import feta, sys; feta.sparsify; print('numba' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (answer.stdout.strip(), answer.stderr) == ("False", "")


# What is given


@pytest.mark.parametrize(
    ("example", "batches", "error", "message"),
    [
        ("x", None, ConfigError, "must be a tensor, a tuple or a dict, got 'x'"),
        ((), None, ConfigError, "must hold a tensor of samples"),
        (torch.randn(0, 30), None, ConfigError, "must hold a tensor of samples"),
        (torch.randn(2, 30), (0,), ConfigError, r"batches must be whole numbers >= 1, got \[0\]"),
        (torch.randn(2, 30), (), ConfigError, r"batches must be whole numbers >= 1, got \[\]"),
        (torch.randn(2, 31), None, ModelError, "must run on the example with 2 samples, got:"),
    ],
)
def test_what_is_refused(example, batches, error, message):
    with pytest.raises(error, match=message):
        feta.sparsify(mlp(), example, batches)


def test_examples_are_cut_and_repeated():
    example = {"x": torch.arange(6).reshape(3, 2), "scale": torch.tensor(2.0), "mask": torch.ones(4), "flag": True}
    more = of_size(example, 5)
    assert more["x"].tolist() == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]
    assert (more["scale"], more["mask"].shape, more["flag"]) == (2.0, (4,), True)
    assert of_size((torch.ones(3, 2),), 1)[0].shape == (1, 2)
    assert list(sparsified(mlp(), torch.randn(3, 30), 5, timer=FakeTimer()).dense_ms) == [5]


# In half precision and on GPUs


@pytest.mark.parametrize(("dtype", "error"), [(torch.bfloat16, 0.02), (torch.float16, 0.004)])
def test_outputs_in_half_precision_may_differ_by_roundings(dtype, error, monkeypatch):
    model = zeroed(nn.Sequential(nn.Linear(30, 40)), 0.8).to(dtype)
    model[0].weight[:5] = 0  # a trimmed form there is on every device, in every dtype
    plain = TrimmedLinear.fast
    monkeypatch.setattr(TrimmedLinear, "fast", lambda self, x, plan: plain(self, x, plan) * (1 + error))
    timer, x = FakeTimer(trimmed=0.1, sparse=0.1), torch.randn(4, 30).to(dtype)
    found = sparsified(model, x, timer=timer)
    assert found.notes == []
    assert isinstance(found.model[0], TrimmedLinear)
    error *= 10
    assert "outputs differed by" in sparsified(model, x, timer=timer).notes[0]


def test_launches_cannot_be_recorded_on_a_cpu():
    with pytest.raises(
        ConfigError, match="recorded must be False for a model that is not on a GPU, got one on the cpu"
    ):
        feta.sparsify(mlp(), torch.randn(2, 30), recorded=True)


def test_a_model_that_cannot_be_recorded_is_refused():
    timer = FakeTimer(csr=float("inf"), dense=float("inf"))
    with pytest.raises(ModelError, match="can be recorded as a CUDA graph"):
        sparsified(mlp(), torch.randn(2, 30), timer=timer)


def test_a_whole_that_cannot_be_recorded_stays_dense():
    found = sparsified(mlp(), torch.randn(4, 30), timer=FakeTimer(csr=0.1, groups=0.1, sparse=float("inf")))
    assert found.notes == ["the dense layers stay: the whole model was not faster with sparse ones"]
