"""The kinds of layer that can stand in for a dense one: a table from a kind's name to what builds it.

A builder takes a Linear or a convolution, the device and the dtype it will run in, and gives a module with the same
outputs, or None where that kind cannot do it. The dense layer itself is always a candidate and not in the table.
"""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import nn

from feta.inference import calls
from feta.inference.bitmap import BitmapLinear
from feta.inference.chain import Chain
from feta.inference.convolution import SparseConv2d, is_plain
from feta.inference.csr import CsrLinear
from feta.inference.gpu_delta import KINDS, DeltaLinear
from feta.inference.grouped import Grouped
from feta.inference.trimmed import TrimmedLinear, is_trimmable
from feta.inference.two_four import TwoFourLinear, is_two_four, works
from feta.sparsity import measured

Builder = Callable[[nn.Module, torch.device, torch.dtype], nn.Module | None]
LEAST_ZEROS = 0.3  # below this no sparse form has a chance, and building one would be wasted


def _trimmed(layer: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module | None:
    return TrimmedLinear(layer) if type(layer) is nn.Linear and is_trimmable(layer.weight) else None


def _csr(layer: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module | None:
    known = device.type == "cpu" and dtype in (torch.float32, torch.float64) and torch.backends.mkl.is_available()
    return CsrLinear(layer) if known and type(layer) is nn.Linear and _sparse(layer) else None


def _groups(layer: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module | None:
    if not _has_kernel(device, dtype) or not _sparse(layer):
        return None
    if type(layer) is nn.Linear:
        return Chain([Grouped(layer.weight, layer.bias)])
    return SparseConv2d(layer) if type(layer) is nn.Conv2d and is_plain(layer) else None


def _bitmap(layer: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module | None:
    usable = _has_kernel(device, dtype) and type(layer) is nn.Linear and _sparse(layer)
    return BitmapLinear(layer) if usable and measured(layer.weight) < 0.9 else None  # type: ignore[arg-type]


def _delta(layer: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module | None:
    usable = device.type == "cuda" and dtype in KINDS and find_spec("triton") is not None
    return DeltaLinear(layer) if usable and type(layer) is nn.Linear and _sparse(layer) else None


def _two_four(layer: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module | None:
    usable = type(layer) is nn.Linear and works(device, dtype) and is_two_four(layer.weight)
    return TwoFourLinear(layer) if usable else None  # type: ignore[arg-type]


def _has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cpu" and dtype == torch.float32 and calls.kernels() is not None


def _sparse(layer: nn.Module) -> bool:
    return measured(layer.weight) >= LEAST_ZEROS  # type: ignore[arg-type]


CANDIDATES: dict[str, Builder] = {
    "trimmed": _trimmed,
    "csr": _csr,
    "groups": _groups,
    "bitmap": _bitmap,
    "delta": _delta,
    "2:4": _two_four,
}
