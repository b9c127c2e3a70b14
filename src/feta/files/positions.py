"""Where the non-zero entries of a tensor are, in about H(density) bits per entry.

    "all"    everywhere: nothing is stored
    "bits"   one bit per entry, first entry in the highest bit of the first byte
    "gaps"   a byte per non-zero entry: the number of zeros before it; 255 stands for 255 zeros and no entry

Both kinds of bytes are Huffman coded. Gaps win from about 80 % zeros on, in size and in time: a code has at least one
bit, and eight zeros in a row are too frequent for that.
"""

import numpy as np
from numpy.typing import NDArray

from feta.files.deflate import Bytes, deflated, inflated, restored, shorter

FAR = 255


def encode(places: NDArray[np.int64], total: int) -> tuple[str, bytes]:
    """The kind and the bytes of ascending positions among `total` entries."""
    if len(places) == total:
        return "all", b""
    choices = {"gaps": _gaps(places)}
    if 10 * len(places) > total:  # below, gaps are always the shorter ones
        mask = np.zeros(total, np.bool_)
        mask[places] = True
        choices["bits"] = shorter(np.packbits(mask))
    return min(choices.items(), key=lambda choice: len(choice[1]))


def decode(kind: str, data: Bytes, count: int, total: int) -> NDArray[np.int64] | None:
    """The `count` positions, or None for all of them. Raises ValueError where the bytes cannot be theirs."""
    if kind == "all":
        if count != total or len(data):
            raise ValueError(f"{count} of {total} entries where all belong")
        return None
    if kind == "bits":
        bits = restored(data, -(-total // 8))
        places = np.flatnonzero(np.unpackbits(bits, count=total).view(np.bool_))
    elif kind == "gaps":
        places = _from_gaps(np.frombuffer(inflated(data, count + total // FAR), np.uint8))
    else:
        raise ValueError(f"positions of the unknown kind '{kind}'")
    if len(places) != count or (count and places[-1] >= total):
        raise ValueError(f"{len(places)} positions among {total} where {count} belong")
    return places


def _gaps(places: NDArray[np.int64]) -> bytes:
    zeros = np.diff(places, prepend=-1) - 1
    jumps, rest = np.divmod(zeros, FAR)
    coded = np.full(len(zeros) + int(jumps.sum()), FAR, np.uint8)
    coded[np.cumsum(jumps + 1) - 1] = rest
    return deflated(coded)


def _from_gaps(coded: Bytes) -> NDArray[np.int64]:
    here = coded != FAR
    steps = coded.astype(np.int64)
    steps += here
    ends = np.cumsum(steps, out=steps)
    ends -= 1
    return ends if here.all() else ends[here]
