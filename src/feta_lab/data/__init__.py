"""The data sets of the laboratory: finding them, downloading them, checking them, reading them.

    data = load("mnist-mini")                                     # one of NAMES, see docs/data.md
    images = data.normalisation.apply(data.train.images, "cpu")   # float32, (10000, 1, 28, 28)

A fixed half of each test set is used for validation. A set that is missing or damaged raises DataError.
"""

from feta_lab.data.catalog import NAMES
from feta_lab.data.dataset import DataSet, Normalisation, Split, check, load
from feta_lab.data.download import fetch
from feta_lab.data.files import find, looked_in

__all__ = ["NAMES", "DataSet", "Normalisation", "Split", "check", "fetch", "find", "load", "looked_in"]
