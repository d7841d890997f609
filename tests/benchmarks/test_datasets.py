"""Data sets by name: where they are taken from, how they are checked, and how they are split."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pooch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bali_benchmarks import datasets
from bali_benchmarks.datasets import DataError, Dataset, originals, random_rows, storage
from bali_benchmarks.datasets.registry import ENTRIES, Entry
from support.small_sets import LIKE, Arrays, arrays_like, small_entry, use_only

REAL = list(datasets.NAMES) if "BALI_DATA" in os.environ else []
REAL_FOLDER = os.environ.get("BALI_DATA", "")


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and a cache of our own."""
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("BALI_DATA", str(tmp_path / "folder"))
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)


def put(entry: Entry, arrays: Arrays, folder: Path) -> Path:
    storage.write(folder / entry.path, arrays)
    return folder / entry.path


# --- loading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIKE)
def test_a_set_has_its_values_names_and_types(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = arrays_like(name)
    entry = small_entry(name, arrays)
    use_only(monkeypatch, entry)
    put(entry, arrays, tmp_path / "folder")
    data = datasets.load(name)
    if name == "mnist":
        np.testing.assert_array_equal(data.X[:12].reshape(12, 28, 28), arrays["x_train"])
        np.testing.assert_array_equal(data.y[12:], arrays["y_test"])
        assert (data.X.dtype.name, data.image_shape, data.n_splits) == ("uint8", (28, 28), 1)
    else:
        np.testing.assert_array_equal(data.X, arrays["X"])
        np.testing.assert_array_equal(data.y, arrays["y"])
        assert (data.X.dtype.name, data.image_shape) == ("float64", None)
    assert data.y.dtype == (np.float64 if data.task == "regression" else np.int64)
    assert len(data.feature_names) == data.X.shape[1] == len(set(data.feature_names))
    assert (data.class_names == ()) == (data.task == "regression")


def test_the_folder_goes_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = arrays_like("spam")
    entry = small_entry("spam", arrays)
    use_only(monkeypatch, entry)
    in_cache = put(entry, arrays, tmp_path / "cache" / "bali")
    assert datasets.fetch("spam") == in_cache
    in_folder = put(entry, arrays, tmp_path / "folder")
    assert datasets.fetch("spam") == in_folder
    monkeypatch.delenv("BALI_DATA")
    assert datasets.fetch("spam") == in_cache


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no data set 'boston'; there are yacht, concrete, .* fashion_mnist"):
        datasets.load("boston")


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALI_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"BALI_DATA names .*nowhere', which is not a folder"):
        datasets.load("yacht")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (lambda arrays: {**arrays, "y": arrays["y"][::-1]}, "does not hold the published data of 'yacht'"),
        (lambda arrays: {"X": arrays["X"]}, "lacks the array y: "),
        (lambda arrays: {**arrays, "X": arrays["X"].astype(np.float32)}, "does not hold the published data"),
        (None, "is damaged or no .npz file"),
    ],
)
def test_wrong_files_are_not_used(content: object, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = arrays_like("yacht")
    entry = small_entry("yacht", arrays)
    use_only(monkeypatch, entry)
    path = put(entry, content(arrays) if callable(content) else arrays, tmp_path / "folder")
    if content is None:
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match=complaint) as caught:
        datasets.load("yacht")
    assert "bali-benchmarks data fetch yacht" in str(caught.value)


def test_no_object_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = arrays_like("yacht")
    entry = small_entry("yacht", arrays)
    use_only(monkeypatch, entry)
    path = put(entry, arrays, tmp_path / "folder")
    np.savez(path, allow_pickle=True, **{**arrays, "y": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(DataError, match="damaged"):
        datasets.load("yacht")


# --- fingerprints and files -------------------------------------------------------------------------------------


def test_a_fingerprint_is_of_names_types_shapes_and_values() -> None:
    x = np.arange(6.0).reshape(2, 3)
    same = [{"a": x, "b": x}, {"b": x, "a": x}, {"a": np.asfortranarray(x), "b": x.astype(">f8")}]
    others = [{"a": x, "c": x}, {"a": x, "b": x.astype("f4")}, {"a": x, "b": x.reshape(3, 2)}, {"a": x, "b": x + 1e-15}]
    assert len({storage.fingerprint(arrays) for arrays in same}) == 1
    assert len({storage.fingerprint(arrays) for arrays in [same[0], *others]}) == 5


def test_a_file_is_written_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "x.npz"
    storage.write(path, {"x": np.arange(3)})
    before = path.read_bytes()

    def half(file: object, **arrays: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", half)
    with pytest.raises(KeyboardInterrupt):
        storage.write(path, {"x": np.arange(4)})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_registry_is_complete() -> None:
    assert len({entry.fingerprint for entry in ENTRIES.values()}) == len(ENTRIES) == 12
    for name, entry in ENTRIES.items():
        assert entry.name == name
        assert len(entry.fingerprint) == 64
        assert all(url.startswith("https://") and file.urls for file in entry.files for url in file.urls)
        assert len({file.name for file in entry.files}) == len(entry.files)
        assert all(file.known_hash for file in entry.files) == (entry.kind == "images")
    assert len(ENTRIES["protein"].files) == len(originals.split_files(5)) == 13


# --- splits -----------------------------------------------------------------------------------------------------


def toy(**changes: object) -> Dataset:
    data = Dataset(
        name="toy",
        task="regression",
        X=np.arange(20.0)[:, None],
        y=np.arange(20.0) ** 2,
        feature_names=("x",),
        target_name="y",
        class_names=(),
        test_share=0.1,
        n_splits=2,
        train_index=np.array([np.arange(18), np.arange(2, 20)]),
        test_index=np.array([[18, 19], [1, 0]]),
    )
    return replace(data, **changes)  # type: ignore[arg-type]


def test_published_splits_are_the_default() -> None:
    split = toy().split(1)
    np.testing.assert_array_equal(split.X_train[:, 0], np.arange(2, 20))
    np.testing.assert_array_equal(split.X_test[:, 0], [1, 0])
    np.testing.assert_array_equal(split.y_train, split.X_train[:, 0] ** 2)
    np.testing.assert_array_equal(split.y_test, [1, 0])


@pytest.mark.parametrize("published", [False, None])
def test_random_splits_where_asked_for_or_none_were_published(published: bool | None) -> None:
    data = toy() if published is False else toy(train_index=None, test_index=None)
    split = data.split(7, published)
    train, test = random_rows(20, 7, 0.1)
    np.testing.assert_array_equal(split.X_train[:, 0], train)
    np.testing.assert_array_equal(split.y_test, test**2.0)


def test_splits_that_there_are_not() -> None:
    for k in (-1, 2):
        with pytest.raises(ValueError, match=f"'toy' has published splits 0 to 1, there is no split {k}"):
            toy().split(k)
    with pytest.raises(ValueError, match="numbered from 0, there is no split -1"):
        toy().split(-1, published=False)
    with pytest.raises(ValueError, match="no splits were published for 'toy'"):
        toy(train_index=None, test_index=None).split(0, published=True)
    with pytest.raises(ValueError, match="a given training and test part"):
        toy(image_shape=(1, 1)).split(0, published=False)


@given(st.integers(2, 400), st.integers(0, 2**32), st.sampled_from([0.1, 0.2]))
def test_a_random_split_uses_every_row_once(n: int, seed: int, test_share: float) -> None:
    train, test = random_rows(n, seed, test_share)
    assert sorted([*train, *test]) == list(range(n))
    assert abs(len(test) - test_share * n) <= 0.5 + 1e-9
    np.testing.assert_array_equal(random_rows(n, seed, test_share)[0], train)


def test_the_random_splits_never_change() -> None:
    """Numbers that were found once: results on random splits are only comparable if these stay."""
    train, test = random_rows(10, 0, 0.2)
    assert (train.tolist(), test.tolist()) == ([4, 6, 2, 7, 3, 5, 9, 0], [8, 1])
    assert not np.array_equal(random_rows(10, 1, 0.2)[0], train)


# --- whole sets: small ones, and the real ones where they are -----------------------------------------------------


@pytest.mark.parametrize(("size", "name"), [*(("small", name) for name in LIKE), *(("real", name) for name in REAL)])
def test_a_set_is_as_the_registry_says(size: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALI_DATA", REAL_FOLDER if size == "real" else str(tmp_path / "folder"))
    if size == "small":
        use_only(monkeypatch, small_entry(name, arrays_like(name)))
        put(ENTRIES[name], arrays_like(name), tmp_path / "folder")
    entry, data = ENTRIES[name], datasets.load(name)  # which compares the fingerprint
    assert data.X.shape == (entry.n_rows, len(entry.feature_names))
    assert np.isfinite(data.X).all()
    assert np.isfinite(data.y).all()
    if data.task == "classification":
        assert set(np.unique(data.y)) <= set(range(len(data.class_names)))
    published = None if data.has_published_splits else False
    for k in range(data.n_splits):
        train, test = data.rows(k, published)
        assert np.array_equal(np.sort(np.r_[train, test]), np.arange(entry.n_rows))
        if data.image_shape is None:
            assert len(train) == len(random_rows(entry.n_rows, 0, data.test_share)[0])
