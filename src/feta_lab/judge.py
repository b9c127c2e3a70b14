"""The one judge: every accuracy in every table is computed here."""

import torch
from torch import Tensor, nn

from feta.calibration.model import evaluating
from feta_lab.data import DataSet


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int = 1000) -> float:
    """Percent of images whose largest score is that of their label."""
    right = torch.zeros((), dtype=torch.int64, device=images.device)
    labels = labels.to(images.device)
    with evaluating(model):
        for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True):
            right += (model(x).argmax(1) == y).sum()
    return 100 * int(right) / len(labels)


def judge(model: nn.Module, data: DataSet, device: str | torch.device = "cpu") -> dict[str, float]:
    """Accuracy in percent on the validation and the test half."""
    model = model.to(device)
    return {
        half: accuracy(model, data.normalisation.apply(split.images, device), split.labels)
        for half, split in (("validation", data.validation), ("test", data.test))
    }
