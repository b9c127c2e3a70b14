"""The one door to a model: which of its outputs counts, and where its inputs go."""

from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch

from feta.calibration.model import fused_attention_off, outputs_of, place, several_outputs
from feta.errors import ModelError

X, WHOLE = torch.randn(8, 6), torch.arange(8)


MORE = {"features": torch.zeros(8), "logits": X}
OUTPUTS = [X, (X, 3), [None, WHOLE, X], ("x", X), MORE, SimpleNamespace(logits=X), {"loss": None, "scores": X}]
OUTPUTS += [
    SimpleNamespace(scores=X),
    {"out": {"scores": X}},
    (torch.tensor(0.5), X),
    {"loss": X.mean(), "scores": X},
    ({"loss": X.mean()}, {"scores": X}),
]


@pytest.mark.parametrize("result", OUTPUTS, ids=range(len(OUTPUTS)))
def test_the_output_among_what_a_model_returns(result):
    """A tensor itself; an entry or attribute `logits`; else the first float tensor of a tuple, list or mapping."""
    assert outputs_of(result) is X


ONE = [
    X,
    (X.mean(), X),
    (X, 3),
    {"scores": X},
    MORE,
    (X, (X, X)),
    (X, {"hidden": [X]}),
    [[X], WHOLE],
    SimpleNamespace(scores=X),
]
ONE += [({"loss": X.mean()}, {"scores": X})]
SEVERAL = [(X, X), {"boxes": X, "scores": X}, [(X, X), {"aux": None}], {"preds": {"one": X, "two": X}}, [[X], [X]]]
SEVERAL += [SimpleNamespace(one=X, two=X), [[WHOLE], ({"a": [X, X]},)]]


@pytest.mark.parametrize(("result", "several"), [(r, False) for r in ONE] + [(r, True) for r in SEVERAL])
def test_whether_there_are_outputs_beside_it(result, several):
    """What lies beside the output counts, however deep both lie; states that come with it do not."""
    assert several_outputs(result) == several


@pytest.mark.parametrize("result", [None, 3, {}, (), {"label": WHOLE}, SimpleNamespace(label=WHOLE)], ids=str)
def test_no_output(result):
    with pytest.raises(ModelError, match=f"or a tuple, list or mapping that holds one, got {type(result).__name__}$"):
        outputs_of(result)


@pytest.mark.parametrize("result", [X.mean(), [[X.mean()]]], ids=["a loss", "in a list"])
def test_a_loss_alone_is_no_output(result):
    with pytest.raises(ModelError, match="must return"):
        outputs_of(result)


def test_place_touches_only_the_dtype_of_floats():
    batch = {"x": torch.ones(2), "ids": torch.ones(2, dtype=torch.int32), "scale": 3}
    found = place(batch, torch.device("cpu"), torch.float64)
    assert (found["x"].dtype, found["ids"].dtype, found["scale"]) == (torch.float64, torch.int32, 3)


@pytest.mark.parametrize("before", [True, False])
def test_fused_attention_is_as_it_was_also_after_an_error(before):
    found = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(before)
    try:
        with suppress(KeyError), fused_attention_off():
            assert not torch.backends.mha.get_fastpath_enabled()
            raise KeyError
        assert torch.backends.mha.get_fastpath_enabled() == before
    finally:
        torch.backends.mha.set_fastpath_enabled(found)
