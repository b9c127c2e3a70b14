"""A model of your own: any nn.Module, any DataLoader, ReLUs as functions. Run: python examples/prune_your_model.py"""

import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import feta
from feta_lab.data import load


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(784, 100), nn.Linear(100, 50), nn.Linear(50, 10)

    def forward(self, x):
        return self.out(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


torch.manual_seed(0)
model, digits = Net(), load("mnist-mini")
images = digits.normalisation.apply(digits.train.images, "cpu")
loader = DataLoader(TensorDataset(images, digits.train.labels), batch_size=100, shuffle=True)
optimiser = torch.optim.Adam(model.parameters())
for x, y in loader:  # one epoch, for want of a trained model
    F.cross_entropy(model(x), y).backward()
    optimiser.step()
    optimiser.zero_grad()

result = feta.prune(model, loader, sparsity=0.9)  # labels are dropped; model itself is not changed
print(result.report)
with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/pruned.safetensors"
    print(f"{feta.save(model, path)} bytes dense, {feta.save(result.model, path)} bytes pruned")
    same = feta.load_into(Net(), path)
print("loaded weights are the same:", torch.equal(same.fc1.weight, result.model.fc1.weight))
