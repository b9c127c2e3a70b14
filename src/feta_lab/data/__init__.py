"""Data sets: found, downloaded, checked and read into memory.

    data = load("mnist")                       # --data-dir, FETA_DATA, Debian's folder, cache, download
    images = data.normalisation.apply(data.train.images, "cpu")

| name          | images                    | where it comes from                           |
| ------------- | ------------------------- | --------------------------------------------- |
| mnist-mini    | 10,000 + 10,000, 28×28    | embedded in feta                              |
| mnist         | 60,000 + 10,000, 28×28    | four IDX files, plain or gzip                 |
| fashion-mnist | 60,000 + 10,000, 28×28    | four IDX files, plain or gzip                 |
| cifar-10      | 50,000 + 10,000, 32×32×3  | six files of the official binary version      |

Half of each test set is validation, by a fixed split. Whatever is missing or wrong is a DataError.
"""

from feta_lab.data.catalog import NAMES
from feta_lab.data.checking import CheckReport, FileReport, check
from feta_lab.data.dataset import DataSet, Normalisation, Split
from feta_lab.data.download import Progress
from feta_lab.data.fetching import fetch
from feta_lab.data.loading import load
from feta_lab.data.locate import Location, cache_dir, find, looked_in

__all__ = [
    "NAMES",
    "CheckReport",
    "DataSet",
    "FileReport",
    "Location",
    "Normalisation",
    "Progress",
    "Split",
    "cache_dir",
    "check",
    "fetch",
    "find",
    "load",
    "looked_in",
]
