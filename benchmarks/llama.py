"""A Llama language model in plain PyTorch, and its perplexity: the benchmark needs no other library for it.

    block: x + attention(norm(x)), then x + down(silu(gate(norm x)) * up(norm x))

Names of modules and weights are those of Hugging Face's files, so that `config.json` and `model.safetensors` load as
they are. Shapes: tokens (n, t), states (n, t, width), heads (n, heads, t, width / heads).
"""

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    """The fields of `config.json` that matter here, under their names there."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0


class Attention(nn.Module):
    """Causal attention; several heads of queries share one of keys and values."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.size = config.hidden_size, config.hidden_size // config.num_attention_heads
        shared = config.num_key_value_heads * self.size
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, shared, bias=False)
        self.v_proj = nn.Linear(width, shared, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (self._heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (part * cos + _quarter_turn(part) * sin for part in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, self.size)).transpose(1, 2)


class GatedMlp(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMlp(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class Llama(nn.Module):
    """Tokens in, logits out; the head is the embedding's own weight."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.model.embed_tokens(tokens)
        cos, sin = _turns(self.config, tokens.shape[1], x)
        for block in self.model.layers:
            x = block(x, cos, sin)
        return self.lm_head(self.model.norm(x))


def _turns(config: Config, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding: by which angle each position turns each pair of a head's dimensions; (length, size)."""
    size = config.hidden_size // config.num_attention_heads
    steps = torch.arange(0, size, 2, device=like.device) / size
    angles = torch.arange(length, device=like.device)[:, None] * config.rope_theta**-steps
    both = torch.cat([angles, angles], 1)
    return both.cos().to(like.dtype), both.sin().to(like.dtype)


def _quarter_turn(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], -1)


def random_llama(seed: int = 0, **sizes: Any) -> Llama:
    """A model with random weights, in eval mode; the caller's random numbers stay as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Llama(Config(**sizes))
        nn.init.normal_(model.lm_head.weight, std=0.02)  # tied: with torch's own scale logits would be in the tens
        return model.eval()


def load_llama(folder: Path, dtype: torch.dtype = torch.float32) -> Llama:
    """The model of a Hugging Face folder with a tied embedding, in eval mode."""
    known, written = {field.name for field in fields(Config)}, json.loads((folder / "config.json").read_text())
    if not written.get("tie_word_embeddings"):
        raise ValueError(f"{folder}: tie_word_embeddings must be true, got {written.get('tie_word_embeddings')}")
    with torch.device("meta"):
        model = Llama(Config(**{name: value for name, value in written.items() if name in known}))
    state = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    model.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"]}, assign=True)
    model.lm_head.weight = model.model.embed_tokens.weight
    return model.eval()


def token_windows(file: Path, count: int, length: int, seed: int) -> Tensor:
    """Windows of a file of tokens that begin at random places; (count, length)."""
    tokens = np.load(file).astype(np.int64)
    starts = np.random.default_rng(seed).integers(0, len(tokens) - length + 1, count)
    return torch.from_numpy(np.stack([tokens[start : start + length] for start in starts]))


@torch.no_grad()
def perplexity(model: nn.Module, file: Path, window: int = 1024, limit: int | None = None, batch: int = 8) -> float:
    """exp of the mean cross entropy of each next token, over windows that follow each other; the last is shorter."""
    device = next(model.parameters()).device
    tokens = torch.from_numpy(np.load(file).astype(np.int64))
    tokens = tokens if limit is None else tokens[: limit * window]
    whole = len(tokens) // window * window
    parts = [*tokens[:whole].view(-1, window).split(batch), tokens[whole:][None]]
    total, count = 0.0, 0
    for part in (part.to(device) for part in parts if part.numel() and part.shape[1] > 1):
        logits, following = model(part)[:, :-1].flatten(0, 1), part[:, 1:].flatten()
        total += float(F.cross_entropy(logits.float(), following, reduction="sum").double())
        count += len(following)
    mean = total / count
    return math.exp(mean) if mean < 700 else math.inf
