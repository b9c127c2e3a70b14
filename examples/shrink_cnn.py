"""A small CNN rebuilt with fewer channels, without labels. Run: python examples/shrink_cnn.py

Needs torch-pruning: pip install torch-pruning.
"""

import torch
import torch.nn.functional as F
from torch import nn

import feta
from feta_lab.data import load

torch.manual_seed(0)
digits = load("mnist-mini")
images, test = (digits.normalisation.apply(part.images, "cpu") for part in (digits.train, digits.test))
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 5, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, 10)),
)
optimiser = torch.optim.Adam(model.parameters(), 2e-3)
for x, y in zip(images.split(100), digits.train.labels.split(100), strict=True):  # for want of a trained model
    F.cross_entropy(model(x), y).backward()
    optimiser.step()
    optimiser.zero_grad()


def accuracy(network):
    return 100 * float((network.eval()(test).argmax(1) == digits.test.labels).float().mean())


result = feta.shrink(model, images[:1000], 0.7, effort="fast")  # 70 % of the multiply-adds go
print(result.report)
print(result.model)
print(f"{accuracy(model):.2f} % → {accuracy(result.model):.2f} % test accuracy")
