"""A small table with every kind of column, as a file, and commands run on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from typer.testing import CliRunner, Result

from bali.cli.app import app

QUICK = ("--max-iter", "50", "--members", "2")
PRICE = ("--target", "price", "--drop", "house", "--drop", "dear")
DEAR = ("--target", "dear", "--id", "house", "--drop", "price")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def houses(n: int = 80, seed: int = 0) -> pd.DataFrame:
    """Prices of houses, with missing sizes, a category, a truth value, a date and a class."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(50, 200, n)
    town = rng.choice(["Ulm", "Köln", "Jena"], n)
    sold = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 365, n), unit="D")
    price = 3 * size + 40 * (town == "Köln") + rng.normal(scale=10, size=n)
    return pd.DataFrame(
        {
            "house": [f"H{i:05d}" for i in range(n)],
            "size": np.where(rng.random(n) < 0.1, np.nan, size.round(1)),
            "rooms": (size // 30).astype(int),
            "town": town,
            "garden": rng.random(n) < 0.5,
            "sold": sold.strftime("%Y-%m-%d"),
            "price": price.round(2),
            "dear": np.where(price > 400, "yes", "no"),
        }
    )


def write_houses(folder: Path, n: int = 80, seed: int = 0, **changes: Any) -> Path:
    path = folder / "houses.csv"
    houses(n, seed).assign(**changes).to_csv(path, index=False)
    return path
