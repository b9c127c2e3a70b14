"""Values that no argument should be, most of them; each is made anew, for a call may use it up."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn


class Uncopyable(nn.Linear):
    """A layer that holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.lock = threading.Lock()


class RunsDry:
    """Gives its batches once, though it can be asked again."""

    def __init__(self) -> None:
        self.left = [torch.ones(4, 8)]

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.left:
            yield self.left.pop()


class Unspeakable:
    """What cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no words for it")


def chain(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers)


NUMBERS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "-1": lambda: -1,
    "0": lambda: 0,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "2**64": lambda: 2**64,
    "-2**63": lambda: -(2**63),
    "10**5000": lambda: 10**5000,
    "1e308": lambda: 1e308,
    "1j": lambda: 1j,
    "np.int64(-3)": lambda: np.int64(-3),
    "np.float32(nan)": lambda: np.float32("nan"),
}
WORDS: dict[str, Callable[[], Any]] = {
    "''": lambda: "",
    "'x'": lambda: "x",
    "escapes": lambda: "\x1b[31mred\x07\r\n\0",
    "a lone surrogate": lambda: "\ud800",
    "300 letters": lambda: "x" * 300,
    "b'x'": lambda: b"x",
    "'/'": lambda: "/",
    "'[*'": lambda: "[*",
    "'meta'": lambda: "meta",
    "'cuda:99'": lambda: "cuda:99",
    "'0:0'": lambda: "0:0",
    "'999999999999x1'": lambda: "999999999999x1",
}
THINGS: dict[str, Callable[[], Any]] = {
    "[]": list,
    "()": tuple,
    "{}": dict,
    "[None]": lambda: [None],
    "[1, 'x']": lambda: [1, "x"],
    "{'x': None}": lambda: {"x": None},
    "{1: 2}": lambda: {1: 2},
    "{'*': nan}": lambda: {"*": float("nan")},
    "{'*': '\\x1b'}": lambda: {"*": "\x1b[0m"},
    "set()": set,
    "object()": object,
    "a class": lambda: int,
    "nn.Linear": lambda: nn.Linear,
    "a value without a repr": Unspeakable,
    "an empty iterator": lambda: iter(()),
    "an iterator of words": lambda: iter(["x"]),
    "an iterable that runs dry": RunsDry,
    "torch.device('meta')": lambda: torch.device("meta"),
    "an array of objects": lambda: np.array([None, "x"], dtype=object),
    "an array": lambda: np.ones((4, 8)),
}
TENSORS: dict[str, Callable[[], Any]] = {
    "a number": lambda: torch.tensor(1.0),
    "no rows": lambda: torch.zeros(0, 8),
    "no columns": lambda: torch.zeros(8, 0),
    "one dimension": lambda: torch.zeros(8),
    "three dimensions": lambda: torch.zeros(2, 2, 2),
    "wrong width": lambda: torch.ones(6, 5),
    "nan": lambda: torch.full((6, 8), float("nan")),
    "inf": lambda: torch.full((6, 8), float("inf")),
    "uint8": lambda: torch.ones(6, 8, dtype=torch.uint8),
    "bool": lambda: torch.ones(6, 8, dtype=torch.bool),
    "complex": lambda: torch.ones(6, 8, dtype=torch.complex64),
    "sparse": lambda: torch.ones(6, 8).to_sparse(),
    "meta": lambda: torch.ones(6, 8, device="meta"),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(6, 8), 0.1, 0, torch.qint8),
    "(x, y)": lambda: (torch.ones(6, 8), torch.zeros(6, dtype=torch.int64)),
    "(x, y) of floats": lambda: (torch.ones(6, 8), torch.zeros(6, 1)),
    "single samples": lambda: [torch.ones(8) for _ in range(6)],
    "single samples and classes": lambda: [(torch.ones(8), 1) for _ in range(6)],
    "an empty first batch": lambda: [torch.ones(0, 8), torch.ones(6, 8)],
    "batches of two widths": lambda: [torch.ones(6, 8), torch.ones(6, 7)],
    "a dict of the wrong names": lambda: {"nothing": torch.ones(6, 8)},
    "{'0': a mask}": lambda: {"0": torch.ones(3, 3, dtype=torch.bool)},
    "{'x': a mask}": lambda: {"x": torch.ones(8, 8, dtype=torch.bool)},
    "{'0': not a mask}": lambda: {"0": torch.full((8, 8), 0.5)},
}
MODELS: dict[str, Callable[[], Any]] = {
    "nn.Module()": nn.Module,
    "nn.Identity()": nn.Identity,
    "an empty chain": chain(),
    "meta": lambda: nn.Sequential(nn.Linear(8, 8, device="meta"), nn.ReLU(), nn.Linear(8, 3, device="meta")),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3)),
    "uncopyable": lambda: nn.Sequential(Uncopyable(), nn.ReLU(), nn.Linear(8, 3)),
    "no inputs": lambda: nn.Sequential(nn.Linear(8, 0), nn.ReLU(), nn.Linear(0, 3)),
    "no outputs": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 0)),
    "another width": lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)),
    "whole numbers": lambda: nn.Sequential(nn.Embedding(4, 8), nn.Flatten()),
    "nan weights": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).apply(
        lambda module: [nn.init.constant_(p, float("nan")) for p in module.parameters()]
    ),
    "TorchScript": lambda: torch.jit.trace(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)), torch.ones(2, 8)),
}
BAD = {
    f"{kind} {name}": make
    for kind, values in (("number", NUMBERS), ("text", WORDS), ("thing", THINGS))
    for name, make in values.items()
}
BAD |= {f"tensor {name}": make for name, make in TENSORS.items()} | {
    f"model {name}": make for name, make in MODELS.items()
}
TEXTS = (
    "",
    "x",
    "-1",
    "0",
    "1.5",
    "nan",
    "inf",
    "1e400",
    "9" * 30,
    "9" * 5000,
    "x" * 300,
    "\x1b[31m",
    "/",
    "[*",
    ",",
    "=",
    "meta",
    "\ud800",
)
