"""`bali query`: the rows of a file to label next."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from support.houses import houses, run


def test_rows_to_label_are_written_as_they_are(tmp_path: Path, house_models: Path) -> None:
    out = tmp_path / "next.csv"
    result = run("query", house_models / "price", house_models / "houses.csv", "-n", 5, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    told, frame = json.loads(result.stdout), pd.read_csv(out)
    assert frame["row"].tolist() == told["rows"]
    assert len(set(told["rows"])) == 5
    wanted = houses().iloc[[row - 1 for row in told["rows"]]]
    assert frame["house"].tolist() == wanted["house"].tolist()
    assert frame["town"].tolist() == wanted["town"].tolist()


def test_classes_and_a_file_of_target_rows(tmp_path: Path, house_models: Path) -> None:
    target = tmp_path / "target.csv"
    houses(20, seed=3).to_csv(target, index=False)
    for method in ("epig", "batchbald"):
        out = tmp_path / f"{method}.parquet"
        result = run(
            "query", house_models / "dear", house_models / "houses.csv", "-n", 3, "--method", method, "--target", target,
            "--samples", 16, "--out", out,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        assert len(pd.read_parquet(out)) == 3
        assert "3 rows of 80 to label with 'dear' next" in " ".join(result.output.split())


def test_what_cannot_be_done_is_told(tmp_path: Path, house_models: Path) -> None:
    file = house_models / "houses.csv"
    for arguments, words in {
        ("price", file, "-n", 81): "80 rows, of which 81 cannot be chosen",
        ("price", file, "--method", "best"): "there are epig, bald, batchbald, variance",
        ("dear", file, "--method", "variance"): "--method variance is for numbers",
        ("price", file, "--out", file): "would overwrite what is read",
        ("price", file, "--out", house_models / "price" / "model.bali"): "would overwrite what is read",
    }.items():
        model, *rest = arguments
        result = run("query", house_models / str(model), *rest)
        assert result.exit_code != 0
        assert words in " ".join(result.output.replace("│", " ").split())
    assert not (tmp_path / "to-label.csv").exists()
