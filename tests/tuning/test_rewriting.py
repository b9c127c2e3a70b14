"""Texts that the original rewrites: which token is drawn from which output, and what stays."""

import pytest
import torch
from torch import nn

import feta
from feta.tuning.rewriting import Rewriter, rewriter_of

WORDS = 7


def following(x: torch.Tensor) -> torch.Tensor:
    """Sure that each token is followed by the next number."""
    return nn.functional.one_hot((x + 1) % WORDS, WORDS).float() * 50


def itself(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.one_hot(x, WORDS).float() * 50


def counting(n: int = 5, length: int = 9) -> torch.Tensor:
    return (torch.arange(length) + torch.arange(n)[:, None]) % WORDS


@pytest.mark.parametrize(("outputs", "lag"), [(following, 1), (itself, 0)])
def test_the_lag_is_told_by_what_the_model_says(outputs, lag):
    assert rewriter_of(outputs, counting()) == Rewriter(lag)
    assert rewriter_of(lambda x: outputs(x["input_ids"]), {"input_ids": counting()}) == Rewriter(lag)


@pytest.mark.parametrize(
    "x",
    [torch.rand(4, 6), torch.ones(4, 6, dtype=torch.bool), torch.ones(4, dtype=torch.long), {"ids": counting()}],
    ids=["floats", "flags", "one number each", "another name"],
)
def test_what_is_no_text_is_left_alone(x):
    assert rewriter_of(lambda _: pytest.fail("it was run"), x) is None


def test_models_that_say_something_else_are_not_asked():
    assert rewriter_of(lambda x: following(x)[:, 0], counting()) is None  # one answer for a text
    assert rewriter_of(lambda x: following(x)[..., :3], counting()) is None  # fewer scores than tokens
    assert rewriter_of(lambda x: itself((x + 3) % WORDS), counting()) is None  # never right


def test_words_are_drawn_after_those_before_them():
    x, generator = torch.randint(0, WORDS, (40, 9)), torch.Generator().manual_seed(0)
    new = Rewriter(1)(x, following(x), 0.5, generator)
    changed = new != x
    assert not changed[:, 0].any()
    assert torch.equal(new[:, 1:][changed[:, 1:]], (x[:, :-1][changed[:, 1:]] + 1) % WORDS)
    assert 0.3 < float(changed[:, 1:].float().mean()) / (1 - 1 / WORDS) < 0.7
    assert new.dtype == x.dtype
    assert torch.equal(Rewriter(1)(x, following(x), 0.0, generator), x)
    assert torch.equal(Rewriter(0)(x, following(x), 1.0, generator), (x + 1) % WORDS)


def test_they_are_drawn_as_often_as_the_model_says():
    scores = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0, 0.0, 0.0]).clamp_min(1e-30).log()
    x = torch.zeros(200, 100, dtype=torch.long)
    new = Rewriter(0)(x, scores.expand(200, 100, WORDS), 1.0, torch.Generator().manual_seed(1))
    shares = torch.bincount(new.flatten(), minlength=WORDS) / new.numel()
    assert torch.allclose(shares, scores.exp(), atol=0.015)


def test_padding_stays():
    x = {"input_ids": counting(), "attention_mask": torch.ones(5, 9, dtype=torch.long), "more": torch.ones(5)}
    x["attention_mask"][:, 6:] = 0
    new = Rewriter(0)(x, itself((x["input_ids"] + 2) % WORDS), 1.0, torch.Generator().manual_seed(0))
    assert torch.equal(new["input_ids"][:, :6], (x["input_ids"][:, :6] + 2) % WORDS)
    assert torch.equal(new["input_ids"][:, 6:], x["input_ids"][:, 6:])
    assert new["more"] is x["more"]
    assert x["input_ids"].equal(counting())


class Words(nn.Module):
    """A model of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.out = nn.Embedding(WORDS, 12), nn.Linear(12, 24), nn.Linear(24, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return 4 * self.out(torch.relu(self.inner(self.table(ids))))


def test_a_fit_on_texts_uses_it(monkeypatch):
    torch.manual_seed(0)
    used, plain = [], Rewriter.__call__
    monkeypatch.setattr(Rewriter, "__call__", lambda *given: used.append(given[3]) or plain(*given))
    monkeypatch.setattr("feta.tuning.rewriting.KNOWN", 0.0)
    model, x = Words().eval(), torch.randint(0, WORDS, (60, 8))
    pruned = feta.prune(model, x, 0.5, "threshold").model
    feta.refine(pruned, model, x, steps=5, learning_rate=1e-3)
    assert used == [0.3] * 5
    feta.refine(pruned, model, x, feta.Refinement(5, learning_rate=1e-3, mixing=False))
    assert len(used) == 5
