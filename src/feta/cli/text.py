"""Text as model inputs: tokens packed into windows of one length, without padding."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feta.calibration.inputs import drawn
from feta.errors import ConfigError, DataError, FileError, one_line
from feta.files.plain import from_json, shortened
from feta.plugins import needed

LENGTH = 512
MOST = 256  # windows, unless --samples says otherwise


def read_text(path: Path, tokenizer: Path, length: int, samples: int | None, seed: int) -> tuple[Tensor, str]:
    """Windows of tokens (samples, length) out of a .jsonl or .txt file; and what they are in words.

    Texts are taken in a seeded order and joined, each with the marks that the tokenizer sets itself.
    """
    encoder = _tokenizer(tokenizer)
    texts, wanted = _texts(path), samples or MOST
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed)).tolist()
    pieces: list[Sequence[int]] = []
    total = 0
    for index in order:
        if len(texts) > 1 and total >= wanted * length:
            break
        pieces.append(encoder.encode(texts[index]).ids)
        total += len(pieces[-1])
    if total < length:
        raise DataError(f"{path} must hold {length} tokens or more, got {total}; give a --length of at most {total}")
    tokens = torch.tensor(list(chain.from_iterable(pieces)), dtype=torch.int64)
    windows = tokens[: total // length * length].reshape(-1, length)
    windows = windows[drawn(len(windows), wanted, seed)]
    return windows, f"{len(windows)} windows of {length} tokens of {path}"


def find_tokenizer(given: Path | None, *folders: Path) -> Path:
    """The tokenizer that is given, or the first tokenizer.json in the folders."""
    for place in [given] if given else [folder / "tokenizer.json" for folder in folders]:
        if place.is_file():
            return place
    if given:
        raise FileError(f"cannot read {given}: No such file")
    looked = " or ".join(dict.fromkeys(map(str, folders)))
    raise ConfigError(f"text must have a tokenizer, got no tokenizer.json in {looked}; give --tokenizer FILE")


def _tokenizer(path: Path) -> Any:
    package = needed("tokenizers", f"{path}: a tokenizer", "tokenizers")
    try:
        found = package.Tokenizer.from_file(str(path))
    except Exception as error:  # the package has one class for all its errors
        raise FileError(f"{path} must be a tokenizer.json, got one that cannot be read: {one_line(error)}") from None
    found.no_truncation()  # many tokenizers cut at the length they were trained with
    found.no_padding()
    return found


def _texts(path: Path) -> list[str]:
    try:
        content = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} must be text in UTF-8, got a byte that is not at {error.start}") from None
    if path.suffix != ".jsonl":
        return [content]
    lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    texts = [_text(line, f"{path}, line {number}") for number, line in lines]
    if not texts:
        raise DataError(f"{path} must hold texts, got none")
    return texts


def _text(line: str, where: str) -> str:
    try:
        found = from_json(line)
    except ValueError as error:
        raise DataError(f'{where} must be a JSON object with a "text", got {one_line(error)}') from None
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        got = shortened(sorted(found)) if isinstance(found, dict) else type(found).__name__
        raise DataError(f'{where} must be a JSON object with a "text", got {got}')
    return str(found["text"])
