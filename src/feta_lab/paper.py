"""What the paper printed, as data.

Konstantinos Pitas, Mike Davies, Pierre Vandergheynst, "Revisiting hard thresholding for DNN pruning", Table 1:
test accuracy and total time (pruning and retraining) of networks pruned to 90 %, in hours, minutes, seconds.
Dense networks were pruned and retrained on one laptop CPU (Core i7, 2.8 GHz); conv networks were pruned on 48
Xeon CPUs and retrained on one GTX 1080. The paper gives neither the two times apart nor a spread.
"""

from dataclasses import dataclass

SOURCE = "Pitas, Davies, Vandergheynst: Revisiting hard thresholding for DNN pruning, Table 1"
SPARSITY = 0.9
CHANCE = 10.0  # percent that guessing gets right: MNIST, Fashion-MNIST and CIFAR-10 have ten classes each
SPEEDUP_OVER_LOBS = 8.0  # "FeTa is up to 8× faster than LOBS in some experiments", the section on Figure 2

# In the order of Figure 2's panels: dense networks above convolutional ones.
NETS = ("dense-mnist", "dense-fashion", "dense-cifar", "conv-mnist", "conv-fashion", "conv-cifar")
METHODS = ("threshold", "net-trim", "lobs", "corenet")
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Printed:
    """One cell of the paper's table: the time as printed, and the accuracy in percent."""

    time: str
    accuracy: float

    @property
    def seconds(self) -> float:
        """The printed time as a number."""
        amount, unit = self.time.split()
        return float(amount) * UNITS[unit]


def _row(*cells: str) -> tuple[Printed, ...]:
    parts = (cell.split(", ") for cell in cells)
    return tuple(Printed(time, float(accuracy)) for time, accuracy in parts)


# The columns in the paper's order.
_COLUMNS = ("dense-mnist", "conv-mnist", "dense-fashion", "conv-fashion", "dense-cifar", "conv-cifar")
_ROWS = {
    "net-trim": _row("3 min, 94.5", "16 min, 97", "15 min, 87", "24 min, 92", "13 min, 45", "39 min, 78"),
    "lobs": _row("3 min, 96", "3 min, 97", "3 min, 87", "3 h, 92", "1 h, 45", "3 h, 78"),
    "corenet": _row("1 min, 93", "3 min, 97", "42 min, 87", "18 min, 92", "1 h, 45", "53 min, 76"),
    "threshold": _row("26 s, 96", "0.5 s, 97", "4 s, 87", "22 s, 92", "3 s, 45", "44 s, 78"),
}
TABLE1: dict[tuple[str, str], Printed] = {
    (net, method): cell for method, cells in _ROWS.items() for net, cell in zip(_COLUMNS, cells, strict=True)
}
