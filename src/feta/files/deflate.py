"""Bytes whose values are not equally frequent, in fewer bits: the Huffman code of deflate, which Python has built in.

Repeats are not looked for. Trained weights have none, and matches found by chance cost size and time.
"""

import zlib

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def deflated(data: Bytes) -> bytes:
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(data.data) + coder.flush()


def shorter(data: Bytes) -> bytes:
    """The Huffman code of some bytes, or the bytes themselves where that is no shorter."""
    coded = deflated(data)
    return coded if len(coded) < len(data) else data.tobytes()


def restored(data: Bytes, length: int) -> Bytes:
    """The `length` bytes that `shorter` was given. Raises ValueError where the data is not theirs."""
    if len(data) == length:
        return data
    return np.frombuffer(inflated(data, length, exact=True), np.uint8)


def inflated(data: Bytes, most: int, *, exact: bool = False) -> bytes:
    """What a Huffman code stands for, never more than `most` bytes: a small file must not fill the memory."""
    reader = zlib.decompressobj(-15)
    try:
        found = reader.decompress(data.data, most + 1)
    except zlib.error as error:
        raise ValueError(f"coded bytes that are damaged ({error})") from error
    if len(found) > most or not reader.eof or (exact and len(found) < most):
        raise ValueError(f"coded bytes of {len(found)} or more where {most} belong")
    return found
