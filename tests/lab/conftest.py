"""A data set to train on."""

import pytest
import torch

from feta_lab.data import DataSet, Normalisation, Split


@pytest.fixture(scope="session")
def tiny_data() -> DataSet:
    """Three kinds of noisy 6 x 6 images: enough to learn from in a second, too noisy to learn in full."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(0, 60, (3, 1, 6, 6), generator=generator)

    def split(n: int) -> Split:
        labels = torch.randint(0, 3, (n,), generator=generator)
        noise = torch.randint(0, 190, (n, 1, 6, 6), generator=generator)
        return Split((patterns[labels] + noise).to(torch.uint8), labels)

    train, validation, test = split(300), split(120), split(120)
    return DataSet("tiny", "tiny", train, validation, test, Normalisation.of(train.images), 3, "nowhere")
