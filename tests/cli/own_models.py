"""Small models and data of a user's own, written into the current folder."""

import itertools
from pathlib import Path

import numpy as np

CODE = """
import torch
from torch import nn

print("the user's code says hello")


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 5))


class Conv(nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(channels, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()).relu().mean((2, 3)))


class Grey(Conv):
    def __init__(self):
        super().__init__(1)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(100, 12)
        self.one, self.two = nn.Linear(12, 24), nn.Linear(24, 100)

    def forward(self, input_ids, shift=None):
        rows = self.embed(input_ids)
        return self.two(self.one(rows if shift is None else rows + shift[:, None]).relu())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(20, 20), nn.Linear(20, 20)
        self.c = nn.Linear(20, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.c(self.b(self.a(x)))


def wide(width, depth=2):
    return make()


def broken():
    return nn.Linear("a", 3)


net = make()
number = 3
"""
_count = itertools.count()


def write_code(code: str = CODE) -> str:
    """The code as a module of the current folder; its name, a new one each time, as Python keeps modules."""
    name = f"my_model_{next(_count)}"
    Path(f"{name}.py").write_text(code)
    return name


def rows(n: int = 300, width: int = 20) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, width)).astype(np.float32)
