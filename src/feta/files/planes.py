"""The values of a tensor, split into what is compressible and what is noise.

A float is rotated so that its sign comes last, and its leading 16 bits then hold

    exponent | mantissa        float32: 8 + 8 bits, bfloat16: 8 + 7 + sign, float16: 5 + 10 + sign, float64: 11 + 5

The exponents of trained weights lie within a few binades, and the first bits of the mantissa are often small. So one
byte takes the last four bits of the exponent together with the first four of the mantissa (the binades that occur,
each in 16 steps), another byte what is left of the 16 bits. Both are Huffman coded. The bits behind them, sign
included, are noise and stored as they are. Other dtypes are split into their bytes.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from feta.files.deflate import Bytes, restored, shorter

Words = NDArray[np.unsignedinteger]
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
# Bits of the exponent, and how many of the 16 leading bits lie behind the first byte.
FLOATS = {torch.float64: (11, 1), torch.float32: (8, 4), torch.bfloat16: (8, 4), torch.float16: (5, 8)}
BELOW = 12  # binades under the most frequent one that the first byte tells apart; there are 16 in all
CHUNK = 2**18  # words that are worked on at once: they stay in the processor's cache


def encode(words: Words, dtype: torch.dtype) -> tuple[int, list[bytes]]:
    """The lowest exponent of the first byte, and the planes."""
    if dtype not in FLOATS:
        split = np.ascontiguousarray(words.view(np.uint8).reshape(-1, words.itemsize).T)
        return 0, [shorter(plane) for plane in split]
    (exponent, behind), bits = FLOATS[dtype], 8 * words.itemsize
    turned = words << 1 | words >> (bits - 1)
    top = (turned >> (bits - 16)).astype(np.uint16)
    base = (int(np.bincount(top >> (16 - exponent)).argmax()) - BELOW) % 2**exponent if len(top) else 0
    top -= np.uint16(base << (16 - exponent))
    first = (top >> behind).astype(np.uint8)
    second = (top >> (behind + 8) << behind | top & (2**behind - 1)).astype(np.uint8)
    noise = turned.view(np.uint16).reshape(-1, words.itemsize // 2)[:, :-1]
    return base, [shorter(first), shorter(second), noise.tobytes()]


def decode(planes: list[Bytes], base: int, count: int, dtype: torch.dtype) -> Words:
    """The words. Raises ValueError where the planes cannot be theirs."""
    size = dtype.itemsize
    words: Words = np.empty(count, WORDS[size])
    if len(planes) != (3 if dtype in FLOATS else size):
        raise ValueError(f"{len(planes)} planes")
    if dtype not in FLOATS:
        split = words.view(np.uint8).reshape(count, size)
        for i, plane in enumerate(planes):
            split[:, i] = restored(plane, count)
        return words
    exponent, behind = FLOATS[dtype]
    if not 0 <= base < 2**exponent or len(planes[2]) != count * (size - 2):
        raise ValueError(f"a lowest exponent of {base} and {len(planes[2])} bytes of noise")
    first, second = restored(planes[0], count), restored(planes[1], count)
    noise = planes[2].view(np.uint16).reshape(count, size // 2 - 1)
    lowest = np.uint16(base << (16 - exponent))
    for start in range(0, count, CHUNK):
        part = slice(start, start + CHUNK)
        more = second[part].astype(np.uint16)
        top = more >> behind << (behind + 8) | first[part].astype(np.uint16) << behind | more & (2**behind - 1)
        top += lowest
        turned = words[part]
        halves = turned.view(np.uint16).reshape(-1, size // 2)
        halves[:, :-1] = noise[part]
        halves[:, -1] = top
        words[part] = turned >> 1 | turned << (8 * size - 1)
    return words
