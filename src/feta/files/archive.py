"""Many tensors as one row of bytes: an index, deflated, and the tensors behind one another.

A safetensors header takes some 90 bytes for every tensor, a tenth of the file of a small network with batch-norms.
The index, a JSON object, holds for each tensor its name, dtype, shape and CRC-32, and facts about the tensors.
"""

import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from feta.errors import FileError
from feta.files.plain import LONGEST, object_from_json, shortened, tamed

TENSORS = "tensors"


def join(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> tuple[Tensor, str]:
    """One uint8 tensor of all, and the text that `split` needs: the index's length and CRC-32."""
    rows = {name: tensor.reshape(-1).view(torch.uint8) for name, tensor in tensors.items()}
    listed = [
        [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), zlib.crc32(rows[name].numpy().data)]
        for name, tensor in tensors.items()
    ]
    index = zlib.compress(json.dumps({**facts, TENSORS: listed}, separators=(",", ":")).encode(), 9)
    start = torch.frombuffer(bytearray(index), dtype=torch.uint8)
    return torch.cat((start, *rows.values())), f"{len(index)} {zlib.crc32(index)}"


def split(joined: Tensor, text: str, where: str, cure: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and what is said of them. Raises FileError, which names the tensor that is damaged."""
    tensors: dict[str, Tensor] = {}
    try:
        end, right = map(int, text.split())
        index = joined[:end].numpy().tobytes()
        if zlib.crc32(index) != right:
            raise FileError(f"{where}: the index must have the checksum {right}, got {zlib.crc32(index)}; {cure}")
        facts = object_from_json(zlib.decompressobj().decompress(index, LONGEST + 1))
        for name, kind, shape, right in facts.pop(TENSORS):
            if not isinstance(name, str):
                raise ValueError(f"a tensor named {shortened(name)}")
            dtype = getattr(torch, kind)
            start, end = end, end + math.prod(shape) * dtype.itemsize
            row = joined[start:end]
            if (found := zlib.crc32(row.numpy().data)) != right:
                said = f"the checksum {shortened(right)}, got {found}"
                raise FileError(f"{where}: tensor {shortened(name)} must have {said}; {cure}")
            # A copy where it does not begin at a multiple of its item size.
            tensors[name] = (row if dtype == torch.uint8 else row.clone()).view(dtype).reshape(shape)
    except (zlib.error, AttributeError, KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise FileError(f"{where} must have an index of its tensors, got {tamed(error)}") from error
    if end != len(joined):
        raise FileError(f"{where}: tensors must be {end} bytes, got {len(joined)}")
    return tensors, facts
