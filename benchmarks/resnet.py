"""The CIFAR-10 ResNets of the benchmark (He et al. 2015, section 4.2), and the images they are measured on.

    conv 3x3, batch-norm, ReLU; three stages of blocks with 16, 32 and 64 channels; mean over the image; linear

The depth is 6 x (blocks per stage) + 2. A shortcut that changes shape takes every second row and column and pads the
channels with zeros, so that it has no weights.
"""

import functools
import hashlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from feta_lab.data import Normalisation
from feta_lab.data.catalog import entry
from feta_lab.data.files import path_of, read_file

PIXELS = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # what the published weights were trained with


class Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.stride, self.added = stride, out - channels

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        if self.added == 0:
            return x
        half = self.added // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))


class ResNet(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def _stage(channels: int, out: int, blocks: int, stride: int) -> nn.Sequential:
    first = Block(channels, out, stride)
    return nn.Sequential(first, *(Block(out, out, stride=1) for _ in range(blocks - 1)))


def load_resnet(depth: int, folder: Path) -> ResNet:
    """The trained network of FOLDER/resnet20-cifar10.safetensors, in eval mode."""
    model = ResNet(depth)
    found = model.load_state_dict(load_file(folder / f"resnet{depth}-cifar10.safetensors"), strict=False)
    # The files lack only the number of batches that each batch-norm has seen, which nothing here reads.
    if found.unexpected_keys or any(not key.endswith("num_batches_tracked") for key in found.missing_keys):
        raise ValueError(f"resnet{depth}: the file must hold this network's weights, got {found}")
    return model.eval()


@functools.lru_cache(maxsize=2)  # the calibration and the test file, for all cells
def images_of(name: str, folder: Path) -> tuple[Tensor, Tensor]:
    """Normalised images and labels of a file of CIFAR-10's binary version, such as test_batch.bin, plain or .gz."""
    known = entry("cifar-10")
    file = next(file for file in known.files if file.name == name)
    found = read_file(file, path_of(file, folder / known.folder))
    images = PIXELS.apply(torch.from_numpy(found.images), "cpu")
    return images, torch.from_numpy(found.labels.astype(np.int64))


def data_label(labels: Tensor) -> str:
    """What figures call the data of a test file: a copy coded anew is not the official set."""
    digest = hashlib.sha256(labels.numpy().astype(np.uint8).tobytes()).hexdigest()
    return entry("cifar-10").variants.get(digest, "CIFAR-10")


def calibration_images(folder: Path, count: int, seed: int) -> Tensor:
    """Images drawn from the first training file: each seed is another calibration set."""
    images, _ = images_of("data_batch_1.bin", folder)
    return images[torch.from_numpy(np.random.default_rng(seed).permutation(len(images))[:count])]
