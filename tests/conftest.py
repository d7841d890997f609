"""One thread a test run: the matrices are small, and threads would only wait for each other."""
# ruff: noqa: E402 — settings of hypothesis hold for what is imported after them

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# A change is judged by the same examples each time; `make slow` looks for new ones.
settings.register_profile("same examples", derandomize=True, database=None)
settings.register_profile("new examples", derandomize=False)
settings.load_profile(os.environ.get("BALI_EXAMPLES", "same") + " examples")

from support.houses import DEAR, PRICE, QUICK, run, write_houses

torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of all data sets run where a folder has them, and not where they would have to be downloaded."""
    if "BALI_DATA" in os.environ:
        return
    left_out = [item for item in items if item.get_closest_marker("data")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def house_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with houses.csv, a model `price` of a number and a model `dear` of a class. To be left as it is."""
    folder = tmp_path_factory.mktemp("houses")
    file = write_houses(folder)
    for name, what in {"price": PRICE, "dear": DEAR}.items():
        assert run("fit", file, *what, *QUICK, "--out", folder / name).exit_code == 0
    return folder
