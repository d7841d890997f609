"""The README's code runs, and what it points to exists."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from support.pages import names_after

ROOT = Path(__file__).parents[2]
IN_DOCS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
MADE_WITH_THE_SITE = {"docs/reference/commands.md"}  # by docs/tools/hooks.py; tests/site looks at it
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", *IN_DOCS]


@pytest.fixture(scope="module")
def after_readme(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the README's Python blocks leave behind, run one after the other in an empty folder."""
    return names_after(ROOT / "README.md", tmp_path_factory.mktemp("readme"))


def test_example_fits_and_knows_where_it_has_no_data(after_readme: dict[str, Any]) -> None:
    prediction = after_readme["prediction"]
    truth = torch.tensor([0.0, math.sin(2.0)])
    torch.testing.assert_close(prediction.mean[:2, 0], truth, atol=0.15, rtol=0.0)
    assert (prediction.std[:2] < 0.25).all()
    assert prediction.std[2] > 2 * prediction.std[:2].max()


def test_example_prints_what_its_comments_say(after_readme: dict[str, Any]) -> None:
    assert after_readme["prediction"].mean.shape == (3, 1)
    assert after_readme["fitted"].posteriors["2"].mean.shape == (65, 64)
    assert (after_readme["low"] < after_readme["high"]).all()
    total = after_readme["prediction"].epistemic + after_readme["prediction"].aleatoric
    torch.testing.assert_close(total, after_readme["prediction"].std.square())


def test_the_description_of_the_package_runs(tmp_path: Path) -> None:
    std = names_after(ROOT / "PACKAGE.md", tmp_path)["std"]
    assert std[1] > 2 * std[0]


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_resolve(page: str) -> None:
    source = ROOT / page
    links = re.findall(r"\]\(([^)#\s]+)\)", source.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    missing = {link for link in local if not (source.parent / link).exists()}
    assert {os.path.relpath(source.parent / link, ROOT) for link in missing} <= MADE_WITH_THE_SITE


def test_picture_is_small() -> None:
    assert (ROOT / "docs/images/overview.png").stat().st_size < 300_000
