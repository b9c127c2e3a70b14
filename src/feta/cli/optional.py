"""What commands say about other people's packages, errors and shapes."""

from typing import Any

from feta.errors import listed, one_line
from feta.plugins import needed

__all__ = ["listed", "needed", "one_line", "shape_of"]


def shape_of(sizes: Any) -> str:
    return "×".join(map(str, sizes)) or "one number"
