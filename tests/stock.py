"""What the pages take for granted: a small model and inputs, and files by the names that commands give them."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import feta
from feta.theory.bounds import generalisation_bounds
from feta.theory.dimension import intrinsic_dimension

MY_MODEL = """
import torch
from torch import nn


def make():
    return nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, stride=16), nn.Conv2d(4, 6, 3, padding=1)
        self.head = nn.Linear(6, 10)

    def forward(self, x):
        return self.head(torch.relu(self.conv2(torch.relu(self.conv1(x)))).mean((2, 3)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(100, 12), nn.Linear(12, 24), nn.Linear(24, 100)

    def forward(self, input_ids):
        return self.head(torch.relu(self.inner(self.embed(input_ids))))
"""


def names() -> dict[str, Any]:
    """What Python on a page may use without saying so."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    images, A = torch.randn(300, 20), torch.randn(200, 30)
    result = feta.prune(model, images, 0.9, "threshold")
    found = {"feta": feta, "torch": torch, "model": model, "images": images, "labels": model(images).argmax(1)}
    found |= {"result": result, "pruned": result.model, "A": A, "W": torch.randn(30, 8), "train": lambda model: None}
    found |= {"generalisation_bounds": generalisation_bounds, "intrinsic_dimension": intrinsic_dimension}
    return found | {"others": images[:50], "their_labels": found["labels"][:50], "MyModel": lambda: deepcopy(model)}


def my_model(path: Path) -> None:
    path.write_text(MY_MODEL)


def weights(name: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        scope: dict[str, Any] = {}
        exec(MY_MODEL, scope)
        torch.manual_seed(0)
        save_file(scope[name]().state_dict(), path)

    return write


def inputs(path: Path) -> None:
    np.savez(path, x=np.random.default_rng(0).standard_normal((200, 784)).astype(np.float32))


def photos(path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    path.mkdir()
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 48, 3), dtype=np.uint8)
        image.fromarray(pixels).save(path / f"{number}.png")


def tokenizer(path: Path) -> None:
    package = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    model = package.models.WordLevel({"[UNK]": 0} | {f"w{i}": i for i in range(1, 100)}, unk_token="[UNK]")
    made = package.Tokenizer(model)
    made.pre_tokenizer = package.pre_tokenizers.Whitespace()
    made.save(str(path))


def texts(path: Path) -> None:
    draw = np.random.default_rng(0)
    lines = [json.dumps({"text": " ".join(f"w{i}" for i in draw.integers(1, 100, 500))}) for _ in range(20)]
    path.write_text("\n".join(lines))


def smollm2(path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=True)).save_pretrained(path)
    tokenizer(path / "tokenizer.json")


def trained(path: Path) -> None:
    from feta_lab import store
    from feta_lab.data import load
    from feta_lab.training import Training, train

    store.save(train("60FC-60FC-10SM", load("mnist-mini"), Training(max_epochs=1), preset="dense-mnist"), path)


def pruned(path: Path) -> None:
    from feta.cli.subject import open_subject, prune_subject

    dense = path.with_name("net.safetensors")
    if not dense.exists():
        trained(dense)
    subject = open_subject(dense)
    model, summary, kept = prune_subject(subject, 0.9, "threshold")
    path.write_bytes(subject.encode(model, kept, summary["accuracy"]["pruned"]))


STOCK: dict[str, Callable[[Path], None]] = {
    "my_model.py": my_model,
    "trained.safetensors": weights("make"),
    "cnn.safetensors": weights("Net"),
    "decoder.safetensors": weights("Decoder"),
    "inputs.npz": inputs,
    "w.safetensors": weights("make"),
    "images.npz": inputs,
    "told.json": lambda path: path.write_text(json.dumps({"0": list(range(100))})),
    "LLAMA_FOLDER": smollm2,
    "text.jsonl": texts,
    "rows.safetensors": lambda path: save_file({"x": torch.randn(200, 784)}, path),
    "model.pt": lambda path: torch.save(nn.Linear(2, 2).state_dict(), path),
    "photos": photos,
    "tokenizer.json": tokenizer,
    "texts.jsonl": texts,
    "SmolLM2-135M": smollm2,
    "net.safetensors": trained,
    "dense.safetensors": trained,
    "dense-mnist.safetensors": trained,
    "pruned.safetensors": pruned,
}
