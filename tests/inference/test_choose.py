"""The rule of the choice, with times that are given."""

import pytest
import torch
from torch import nn

from feta.inference.choose import Chooser, best_of
from feta.inference.csr import CsrLinear
from sparse_layers import FakeTimer, sparse_linear


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        ({"dense": {1: 1.0}}, "dense"),
        ({"dense": {1: 1.0}, "csr": {1: 0.5}}, "csr"),
        ({"dense": {1: 1.0}, "csr": {1: 0.95}}, "dense"),  # not by a margin
        ({"dense": {1: 1.0}, "csr": {1: 0.5}, "groups": {1: 0.4}}, "groups"),
        ({"dense": {1: 1.0, 16: 1.0}, "csr": {1: 0.1, 16: 1.2}}, "dense"),  # slower at one size
        ({"dense": {1: 1.0, 16: 1.0}, "csr": {1: 0.1, 16: 1.04}}, "csr"),  # within noise
        ({"dense": {1: 1.0, 16: 9.0}, "csr": {1: 0.5, 16: 8.0}, "groups": {1: 0.9, 16: 3.0}}, "groups"),
    ],
)
def test_the_rule(times, kind):
    assert best_of(times) == kind


def test_layers_that_look_alike_are_measured_once():
    timer = FakeTimer(csr=0.2, groups=0.5, bitmap=0.5)
    chooser, inputs = Chooser(timer), {1: torch.randn(1, 40)}
    for layer in (sparse_linear(40, 30), sparse_linear(40, 30)):
        choice, form = chooser.choose(layer, inputs)
        assert choice.kind == "csr"
        assert isinstance(form, CsrLinear)
        assert torch.equal(form.weight, layer.weight)
    assert len(timer.seen) == 1
    chooser.choose(sparse_linear(40, 30, share=0.6), inputs)
    chooser.choose(sparse_linear(40, 31), inputs)
    assert len(timer.seen) == 3


def test_a_dense_layer_is_not_measured():
    timer, layer = FakeTimer(), nn.Linear(8, 8)
    choice, form = Chooser(timer).choose(layer, {1: torch.randn(1, 8)})
    assert (choice.kind, form, timer.seen) == ("dense", layer, [])


def test_a_candidate_that_cannot_do_it_is_left_out_and_another_can_be_added():
    layer, inputs = sparse_linear(8, 8), {2: torch.randn(2, 8)}
    table = {"none": lambda layer, device, dtype: None, "mine": lambda layer, device, dtype: CsrLinear(layer)}
    choice, form = Chooser(FakeTimer(mine=0.1), candidates=table).choose(layer, inputs)
    assert choice.kind == "mine"
    assert set(choice.times) == {"dense", "mine"}
    assert isinstance(form, CsrLinear)
