"""Losses by what a model returns: against plain formulas in float64, padding left out, and which one is chosen."""

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from feta.errors import ModelError
from feta.tuning.matching import TEMPERATURE, Match, match_for


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kl(output: Tensor, target: Tensor, T: float) -> float:
    """T^2 sum_c p log(p / q), p and q the softmax of target and output over T."""
    p, q = (v / T - (v / T).logsumexp(-1, keepdim=True) for v in (target, output))
    return T * T * float((p.exp() * (p - q)).sum(-1).mean())


def mse(output: Tensor, target: Tensor, T: float) -> float:
    return float(((output - target) ** 2).mean())


def cosine(output: Tensor, target: Tensor, T: float) -> float:
    return float((1 - (output * target).sum(-1) / (output.norm(dim=-1) * target.norm(dim=-1))).mean())


FORMULAS = {"kl": kl, "mse": mse, "cosine": cosine}
each_kind = pytest.mark.parametrize("kind", FORMULAS)


@each_kind
@pytest.mark.parametrize("shape", [(9, 4), (3, 5, 7), (2, 3, 4, 5)])
@pytest.mark.parametrize("T", [1.0, 2.0])
def test_the_formula(kind, shape, T):
    output, target = 3 * drawn(*shape), 3 * drawn(*shape, seed=1)
    assert float(Match(kind)(output, target, T=T)) == pytest.approx(FORMULAS[kind](output, target, T), rel=1e-9)
    assert float(Match(kind)(target, target)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", ["kl", None])
def test_maps_have_a_map_for_each_class_unless_the_last_dimension_has_the_words(kind):
    result = SimpleNamespace(logits=3 * drawn(2, 3, 4, 5))
    output, target = (3 * drawn(2, 3, 4, 5, seed=seed) for seed in (1, 2))
    maps, words = (match_for(nn.Embedding(count, 4), result, kind) for count in (9, 5))
    first = [value.movedim(1, -1) for value in (output, target)]
    assert float(maps(output, target, T=1.0)) == pytest.approx(kl(*first, 1.0), rel=1e-9)
    assert float(words(output, target, T=1.0)) == pytest.approx(kl(output, target, 1.0), rel=1e-9)


def test_fits_are_at_a_temperature_of_two():
    output, target = drawn(6, 3), drawn(6, 3, seed=1)
    assert TEMPERATURE == 2
    assert float(Match("kl")(output, target)) == pytest.approx(kl(output, target, 2.0), rel=1e-9)


def test_one_output_without_a_dimension():
    output, target = drawn(8), drawn(8, seed=1)
    assert float(Match("mse")(output, target)) == pytest.approx(mse(output, target, 1.0))


def test_probabilities_are_no_scores():
    p, q = (drawn(9, 4, seed=seed).softmax(-1) for seed in (0, 1))
    expected = float((p * (p / q).log()).sum(-1).mean())
    assert float(Match("kl", probabilities=True)(q, p, T=1.0)) == pytest.approx(expected, rel=1e-9)
    sure = torch.eye(4, dtype=torch.float64)  # probabilities of zero
    assert torch.isfinite(Match("kl", probabilities=True)(p[:4], sure))
    assert torch.isfinite(Match("kl", probabilities=True)(sure, p[:4]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_outputs_are_matched_in_float32(dtype):
    """Squares of 300 are more than float16 holds, and 1e-8 is less."""
    output, target = (300 * drawn(50, 6, seed=seed).to(dtype) for seed in (0, 1))
    for kind, formula in FORMULAS.items():
        found = float(Match(kind)(output, target, T=1.0))
        assert found == pytest.approx(formula(output.double(), target.double(), 1.0), rel=1e-3, abs=1e-4)
    sure = F.one_hot(torch.arange(4)).to(dtype)
    assert torch.isfinite(Match("kl", probabilities=True)(sure.flip(0), sure))


@each_kind
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_padding_is_left_out(kind, lengths, seed):
    """Only positions that are kept count, all alike; what stands elsewhere changes nothing."""
    output, target = drawn(len(lengths), 5, 3, seed=seed), drawn(len(lengths), 5, 3, seed=seed + 100)
    keep = torch.arange(5) < torch.tensor(lengths)[:, None]
    expected = FORMULAS[kind](output[keep], target[keep], 1.0) if sum(lengths) else 0.0
    assert float(Match(kind)(output, target, keep, T=1.0)) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    output[~keep], target[~keep] = 1e3, -1e3
    assert float(Match(kind)(output, target, keep, T=1.0)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


# Which one


def scores(*shape: int) -> torch.Tensor:
    """As cross-entropy leaves them: their sum does not move."""
    values = drawn(*shape)
    return values - values.mean(-1, keepdim=True)


UNSURE, SCORES, EMBEDDINGS = 0.1 * drawn(100, 10), 8 * scores(100, 10), drawn(100, 16)
DOMINATED = drawn(100, 5) + torch.tensor([1000.0, 0, 0, 0, 0])
CASES: dict[str, tuple[Any, str, bool]] = {
    "scores of classes": (SCORES, "kl", False),
    "scores of tokens": (8 * scores(4, 6, 30), "kl", False),
    "scores in float16": (SCORES.half(), "kl", False),
    "probabilities": (SCORES.softmax(1), "kl", True),
    "probabilities that are unsure": (UNSURE.softmax(1), "kl", True),
    "probabilities in float16": (SCORES.softmax(1).half(), "kl", True),
    "logarithms of probabilities": (SCORES.log_softmax(1), "kl", False),
    "embeddings of length one": (F.normalize(EMBEDDINGS, dim=1), "cosine", False),
    "embeddings of tokens": (F.normalize(drawn(5, 7, 16), dim=-1), "cosine", False),
    "embeddings of any length": (0.1 * EMBEDDINGS, "mse", False),
    "one output": (100 * drawn(50, 1), "mse", False),
    "one output without a dimension": (100 * drawn(50), "mse", False),
    "one share": (torch.ones(50, 1), "mse", False),
    "unsure, without a name": (UNSURE, "mse", False),
    "an attribute called logits": (SimpleNamespace(logits=UNSURE), "kl", False),
    "an entry called logits": (OrderedDict(loss=torch.tensor(1.0), logits=UNSURE), "kl", False),
    "logits of one": (SimpleNamespace(logits=UNSURE[:, :1]), "mse", False),
    "a tuple": ((SCORES, "more"), "kl", False),
    "regression, one column dominates": (DOMINATED, "mse", False),
    "few samples of one class": (SCORES[:1].repeat(5, 1), "kl", False),
    "a score for each token": (0.1 * drawn(4, 6, 33), "kl", False),
    "three numbers": (0.1 * drawn(100, 3), "mse", False),
    "three scores": (4 * scores(100, 3), "kl", False),
    "a regression with three outputs": (4 * drawn(100, 3), "mse", False),
    "two scores, unsure": (drawn(100, 2) / 4, "mse", False),
    "two scores": (4 * scores(100, 2), "kl", False),
    "images": (8 * drawn(6, 3, 9, 9), "mse", False),
    "maps of probabilities": (drawn(6, 3, 9, 9).softmax(1), "kl", True),
    "maps called logits": (SimpleNamespace(logits=drawn(6, 3, 9, 1)), "kl", False),
    "scores whose sum moves": (8 * scores(100, 20).exp() + 9 * drawn(100, 1), "kl", False),
    "scores, two of them masked": (torch.cat([SCORES, torch.full((100, 2), -1e9)], 1), "kl", False),
    "a regression with ten outputs": (8 * drawn(100, 10), "mse", False),
    "shares in percent": (100 * (2 * drawn(100, 3)).softmax(1) + 0.1 * drawn(100, 3), "mse", False),
    "probabilities in bfloat16": ((9 * drawn(100, 10)).softmax(1).bfloat16(), "kl", True),
    "embeddings of length one in bfloat16": (F.normalize(EMBEDDINGS, dim=1).bfloat16(), "cosine", False),
}


@pytest.mark.parametrize("name", CASES)
def test_the_kind_goes_by_the_outputs(name):
    result, kind, probabilities = CASES[name]
    found = match_for(nn.Embedding(33, 4), result)
    assert (found.kind, found.probabilities) == (kind, probabilities)
    assert found.reason


@each_kind
def test_a_kind_that_is_given_is_taken(kind):
    for result in (SCORES, UNSURE, F.normalize(EMBEDDINGS, dim=1), 8 * drawn(6, 3, 9, 9)):
        assert match_for(nn.Identity(), result, kind) == Match(kind, False, "as asked for", channels=result.ndim > 3)
    assert match_for(nn.Identity(), SCORES.softmax(1), kind).probabilities


def test_a_model_that_returns_no_scores():
    with pytest.raises(ModelError, match="model must return a float tensor"):
        match_for(nn.Identity(), (torch.arange(3), "more"))
