"""Data to learn from: the benchmark sets of the paper by name, and its three synthetic sets.

>>> split = load("yacht").split(0)
>>> split.X_train.shape, split.X_test.shape
((277, 6), (31, 6))
"""

from bali_benchmarks.datasets.data_error import DataError
from bali_benchmarks.datasets.dataset import Dataset, Split, random_rows
from bali_benchmarks.datasets.loading import NAMES, fetch, load
from bali_benchmarks.datasets.synthetic import SyntheticData, sinc, sines_trend, two_moons
from bali_benchmarks.datasets.text import sentences

__all__ = [
    "NAMES",
    "DataError",
    "Dataset",
    "Split",
    "SyntheticData",
    "fetch",
    "load",
    "random_rows",
    "sentences",
    "sinc",
    "sines_trend",
    "two_moons",
]
