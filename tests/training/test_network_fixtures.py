"""Files of networks that earlier versions wrote are read, and predict what they predicted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.write_network_fixtures import FIXTURES, predictions

RECORDED = {
    f"{folder.name}/{name}": (folder / name, expected)
    for folder in sorted(FIXTURES.iterdir())
    for name, expected in json.loads((folder / "predictions.json").read_text(encoding="utf-8")).items()
}


@pytest.mark.parametrize(("path", "expected"), RECORDED.values(), ids=RECORDED.keys())
def test_predictions_are_those_that_were_recorded(path: Path, expected: dict[str, list[float]]) -> None:
    found = predictions(path)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-6, err_msg=name)  # float32


def test_every_file_is_recorded() -> None:
    files = {path for folder in FIXTURES.iterdir() for path in folder.glob("*.bali")}
    assert files == {path for path, _ in RECORDED.values()}
