"""Data to learn from: the benchmark sets of the paper by name, and its three synthetic sets.

>>> split = load("yacht").split(0)
>>> split.X_train.shape, split.X_test.shape
((277, 6), (31, 6))
"""

from bali.datasets.dataset import Dataset, Split, random_rows
from bali.datasets.errors import DataError
from bali.datasets.loading import NAMES, fetch, load
from bali.datasets.synthetic import SyntheticData, sinc, sines_trend, two_moons
from bali.datasets.text import sentences

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
