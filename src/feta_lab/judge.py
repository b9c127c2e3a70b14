"""The one judge: every accuracy in every table is computed here."""

import torch
from torch import Tensor, nn

from feta.calibration.model import evaluating
from feta_lab.data import DataSet


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int = 1000) -> float:
    """Percent of images whose largest score is that of their label."""
    batches = zip(images.split(batch_size), labels.to(images.device).split(batch_size), strict=True)
    with evaluating(model):
        right = sum((model(x).argmax(1) == y).sum() for x, y in batches)
    return 100 * int(right) / len(labels)


def judge(model: nn.Module, data: DataSet, device: str | torch.device = "cpu") -> dict[str, float]:
    """Accuracy in percent on the validation and the test half."""
    model = model.to(device)
    return {
        half: accuracy(model, data.normalisation.apply(split.images, device), split.labels)
        for half, split in (("validation", data.validation), ("test", data.test))
    }
