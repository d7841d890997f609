"""A data set by its name, from the first place that has it: the user's folder, the cache, the original source."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bali_benchmarks.datasets import storage
from bali_benchmarks.datasets.dataset import Dataset
from bali_benchmarks.datasets.registry import ENTRIES, Entry

if TYPE_CHECKING:
    from bali_benchmarks.datasets.sources import OnArrival

NAMES = tuple(ENTRIES)


def load(name: str) -> Dataset:
    """The set of this name, as published; it is downloaded and kept if it is not on this machine yet."""
    entry = find_entry(name)
    return as_dataset(entry, storage.read(entry, fetch(name)))


def find_entry(name: str) -> Entry:
    try:
        return ENTRIES[name]
    except KeyError:
        raise ValueError(f"there is no data set {name!r}; there are {', '.join(n for n in NAMES if n in ENTRIES)}") from None


def fetch(name: str, on_arrival: OnArrival = lambda arrived: None) -> Path:
    """The file of this set, downloaded if it is not on this machine yet; `on_arrival` is told how far that has come."""
    entry = find_entry(name)
    found = storage.find(entry)
    if found is not None:
        return found
    from bali_benchmarks.datasets import sources  # the network's libraries are not needed otherwise

    return sources.download(entry, on_arrival)


def as_dataset(entry: Entry, arrays: dict[str, NDArray[Any]]) -> Dataset:
    """Images come as rows of pixels, training part first; tables as float64."""
    dataset = partial(
        Dataset,
        name=entry.name,
        task=entry.task,
        feature_names=entry.feature_names,
        target_name=entry.target_name,
        class_names=entry.class_names,
        n_splits=entry.n_splits,
    )
    if entry.kind == "uci_regression":
        train, test = arrays["train_index"], arrays["test_index"]
        return dataset(X=arrays["X"], y=arrays["y"], test_share=0.1, train_index=train, test_index=test)
    if entry.kind == "classification":
        return dataset(X=arrays["X"].astype(np.float64), y=arrays["y"].astype(np.int64), test_share=0.2)
    x = np.concatenate([arrays["x_train"], arrays["x_test"]])
    y = np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64)
    train, test = np.split(np.arange(len(y))[None], [len(arrays["y_train"])], axis=1)
    pixels = x.reshape(len(x), -1)
    return dataset(
        X=pixels,
        y=y,
        test_share=test.size / len(y),
        train_index=train,
        test_index=test,
        image_shape=(x.shape[1], x.shape[2]),
    )
