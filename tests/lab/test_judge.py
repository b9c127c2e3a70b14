"""Accuracies, counted by hand."""

import pytest
import torch
from torch import nn

from feta_lab.judge import accuracy, judge
from feta_lab.networks import build


class Echo(nn.Module):
    """Scores are the pixels; in training mode it is always wrong."""

    def forward(self, x):
        return -x.flatten(1) if self.training else x.flatten(1)


@pytest.mark.parametrize("batch_size", [1, 3, 1000])
def test_percent_of_largest_scores(batch_size):
    images = torch.eye(4).repeat(2, 1).reshape(8, 1, 2, 2)
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 0, 0])
    model = Echo()
    assert (accuracy(model, images, labels, batch_size), model.training) == (75.0, True)


def test_both_halves_with_the_normalisation(tiny_data):
    model = build("8FC-3SM", tiny_data.shape, seed=0)
    scores = judge(model, tiny_data)
    for half, split in (("validation", tiny_data.validation), ("test", tiny_data.test)):
        predicted = model(tiny_data.normalisation.apply(split.images, "cpu")).argmax(1)
        assert scores[half] == 100 * int((predicted == split.labels).sum()) / 120
