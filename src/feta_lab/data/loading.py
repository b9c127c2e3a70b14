"""From a name to a data set in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from feta.errors import DataError
from feta_lab.data.catalog import CLASSES, DataFile, Entry, entry
from feta_lab.data.dataset import DataSet, Normalisation, Split, halves
from feta_lab.data.download import Progress
from feta_lab.data.fetching import fetch_entry
from feta_lab.data.files import Content, figure_label, read_file, spelled
from feta_lab.data.locate import cache_dir, find, looked_in, not_found


def load(
    name: str, data_dir: Path | None = None, *, download: bool = True, progress: Progress | None = None
) -> DataSet:
    """Find a data set, or download it into feta's cache, and read it.

    A `data_dir` is the only place searched, and nothing is downloaded into it. Half of the test set is
    validation, by a fixed split.
    """
    known = entry(name)
    place = find(name, data_dir)
    if place is not None:
        return read_set(known, place.folder)
    missing = not_found(known, looked_in(name, data_dir))
    if data_dir is not None or not download:
        raise DataError(missing)
    try:
        folder = fetch_entry(known, cache_dir(), progress)
    except DataError as error:
        raise DataError(f"{missing}\n{error}") from error
    return read_set(known, folder)


def read_set(known: Entry, folder: Path) -> DataSet:
    """Read every file of a set from `folder`."""
    train, test = _read(known.train, folder), _read(known.test, folder)
    judged, learned = _split(test), _split(train)
    validation, final = halves(len(judged))
    return DataSet(
        name=known.name,
        label=figure_label(known, [*train, *test]),
        train=learned,
        validation=judged.take(validation),
        test=judged.take(final),
        normalisation=Normalisation.of(learned.images),
        classes=CLASSES,
        source=str(folder),
    )


def _read(files: Sequence[DataFile], folder: Path) -> list[Content]:
    return [read_file(file, spelled(folder, file.name) or folder / file.name) for file in files]


def _split(contents: Sequence[Content]) -> Split:
    images = [content.images for content in contents if content.images is not None]
    labels = [content.labels for content in contents if content.labels is not None]
    # A single IDX file is used where it was read; CIFAR's rows are copied once, to leave the labels out.
    pixels = np.ascontiguousarray(images[0]) if len(images) == 1 else np.concatenate(images)
    return Split(torch.from_numpy(pixels), torch.from_numpy(np.concatenate(labels).astype(np.int64)))
