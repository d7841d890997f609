"""The commands on a table with every kind of column, as a user would run them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from houses import QUICK, houses, run, write_houses
from rich.console import Console
from rich.text import Text

import bali
from bali.commands import fit
from bali.commands.progress import training_bar
from bali.commands.talk import Talk
from bali.table_model import load_table_model
from bali.training import Progress

REGRESSION = ("--target", "price", "--drop", "house", "--drop", "dear")
CLASSES = ("--target", "dear", "--id", "house", "--drop", "price")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """houses.csv, a model of the price and a model of the class."""
    folder = tmp_path_factory.mktemp("houses")
    file = write_houses(folder)
    for name, what in {"price": REGRESSION, "dear": CLASSES}.items():
        assert run("fit", file, *what, *QUICK, "--out", folder / name).exit_code == 0
    return folder


# --- fit --------------------------------------------------------------------------------------------------------


def test_fit_says_what_it_does_and_writes_three_files(tmp_path: Path) -> None:
    file, out = write_houses(tmp_path, price=[*houses().price[:-2], None, None]), tmp_path / "model"
    result = run("fit", file, *REGRESSION, *QUICK, "--out", out)
    assert result.exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["metrics.json", "model.bali", "report.html"]
    assert "houses.csv: 78 rows, 5 columns to learn from (2 of numbers, 2 of categories, 1 of dates)" in result.stdout
    assert "task: regression ('price' holds numbers)" in result.stdout
    assert "2 rows without a value of 'price' left out" in result.stderr
    assert "'sold': dates, used as a number of days" in result.stderr
    assert "raise --max-iter for a better fit" in result.stderr
    assert "coverage_90" in result.stdout
    assert f"bali predict {out} NEW.csv" in result.stdout
    metrics = json.loads((out / "metrics.json").read_text())["metrics"]
    assert set(metrics) == {"rmse", "mae", "r2", "log_likelihood", "coverage_90"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["houses.csv", "model"]


def test_fit_in_json_has_nothing_else_on_standard_output(tmp_path: Path) -> None:
    result = run("fit", write_houses(tmp_path), *CLASSES, *QUICK, "--out", tmp_path / "m", "--json")
    content = json.loads(result.stdout)
    assert (content["task"], content["n_rows"], content["n_holdout"]) == ("classification", 80, 8)
    assert set(content["metrics"]) >= {"accuracy", "log_likelihood", "ece", "brier"}
    assert "task: classification" in result.stderr


def test_quiet_is_quiet(tmp_path: Path) -> None:
    result = run("fit", write_houses(tmp_path), *REGRESSION, *QUICK, "--out", tmp_path / "m", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_the_same_seed_gives_the_same_model(tmp_path: Path, folder: Path) -> None:
    assert run("fit", folder / "houses.csv", *REGRESSION, *QUICK, "--out", tmp_path / "m").exit_code == 0
    again, first = (json.loads((f / "metrics.json").read_text())["metrics"] for f in (tmp_path / "m", folder / "price"))
    assert again == first


def test_a_model_is_replaced_only_by_force_and_other_files_never(tmp_path: Path) -> None:
    file, out = write_houses(tmp_path), tmp_path / "m"
    arguments = ("fit", file, *REGRESSION, *QUICK, "--out", out)
    out.mkdir()
    assert run(*arguments).exit_code == 0  # an empty folder is no obstacle
    before = (out / "model.bali").read_bytes()
    refused = run(*arguments, "--seed", 1)
    assert refused.exit_code == 1
    assert "holds a model already" in refused.stderr
    assert (out / "model.bali").read_bytes() == before
    assert run(*arguments, "--seed", 1, "--force").exit_code == 0
    assert (out / "model.bali").read_bytes() != before
    (out / "thesis.txt").write_text("mine")
    assert "holds other files" in run(*arguments, "--force").stderr
    assert (out / "thesis.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["houses.csv", "m"]


def test_without_holdout_all_rows_are_learned_from(tmp_path: Path) -> None:
    result = run("fit", write_houses(tmp_path), *REGRESSION, *QUICK, "--holdout", 0, "--out", tmp_path / "m", "--json")
    content = json.loads(result.stdout)
    assert (content["n_train"], content["n_holdout"], content["metrics"]) == (80, 0, {})


def test_few_whole_numbers_are_classes_unless_told(tmp_path: Path) -> None:
    file = write_houses(tmp_path)
    arguments = ("fit", file, "--target", "rooms", "--drop", "house", *QUICK, "--json", "--out")
    asked = run(*arguments, tmp_path / "a", "--task", "regression")
    assert json.loads(asked.stdout)["task"] == "regression"
    inferred = run(*arguments, tmp_path / "b")
    assert json.loads(inferred.stdout)["task"] == "classification"
    assert "if they are amounts, use --task regression" in inferred.stderr


def test_classes_with_one_row_are_learned_but_not_scored(tmp_path: Path) -> None:
    labels = ["a"] * 40 + ["b"] * 38 + ["c", "d"]
    result = run("fit", write_houses(tmp_path, dear=labels), *CLASSES, *QUICK, "--out", tmp_path / "m", "--json")
    content = json.loads(result.stdout)
    assert "auc" not in content["metrics"]
    assert "no AUC: none of the scored rows is of class 'c', 'd'" in content["notes"]
    assert load_table_model(tmp_path / "m").target.classes == ("a", "b", "c", "d")


def test_the_default_folder_is_named_after_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_houses(tmp_path)
    assert run("fit", "houses.csv", *REGRESSION, *QUICK).exit_code == 0
    assert (tmp_path / "houses-model" / "model.bali").is_file()


# --- predict ----------------------------------------------------------------------------------------------------


def test_predictions_of_numbers(tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "p.csv"
    result = run("predict", folder / "price", folder / "houses.csv", "--out", out)
    assert result.exit_code == 0
    frame = pd.read_csv(out)
    assert list(frame) == ["row", "mean", "std", "lower", "upper", "epistemic_std", "aleatoric_std"]
    assert frame["row"].tolist() == list(range(1, 81))
    np.testing.assert_allclose(frame["std"] ** 2, frame["epistemic_std"] ** 2 + frame["aleatoric_std"] ** 2, rtol=1e-6)
    assert ((frame["lower"] < frame["mean"]) & (frame["mean"] < frame["upper"])).all()
    assert np.corrcoef(frame["mean"], houses().price)[0, 1] > 0.9


def test_predictions_are_those_of_the_estimator(tmp_path: Path, folder: Path) -> None:
    run(
        "predict", folder / "price" / "model.bali", folder / "houses.csv", "--out", tmp_path / "p.parquet", "--coverage", 0.5
    )
    frame = pd.read_parquet(tmp_path / "p.parquet")
    model = load_table_model(folder / "price")
    features = model.encoder.transform(houses())
    estimator = bali.load(folder / "price" / "model.bali")
    assert isinstance(estimator, bali.BALIRegressor)
    mean, std = estimator.predict(features, return_std=True)
    low, high = estimator.predict_interval(features, coverage=0.5)
    for name, expected in {"mean": mean, "std": std, "lower": low, "upper": high}.items():
        np.testing.assert_allclose(frame[name], expected, rtol=1e-9)


def test_predictions_of_classes_to_standard_output(folder: Path) -> None:
    result = run("predict", folder / "dear", folder / "houses.csv", "--out", "-", "--id", "house", "--samples", 16)
    lines = result.stdout.splitlines()
    assert lines[0] == "house,class,probability_no,probability_yes,entropy,epistemic,aleatoric"
    assert len(lines) == 81
    house, label, no, yes, entropy, epistemic, aleatoric = lines[1].split(",")
    assert (house, label in ('"yes"', '"no"')) == ('"H00000"', True)
    assert float(no) + float(yes) == pytest.approx(1)
    assert float(entropy) == pytest.approx(float(epistemic) + float(aleatoric), abs=1e-9)
    assert "does not use are ignored: 'price'" in result.stderr


def test_new_categories_and_missing_cells_are_noted(tmp_path: Path, folder: Path) -> None:
    new = houses().assign(town="Bonn", rooms=np.nan)
    new.to_csv(tmp_path / "new.csv", index=False)
    result = run("predict", folder / "price", tmp_path / "new.csv", "--out", tmp_path / "p.csv", "--json")
    notes = json.loads(result.stdout)["notes"]
    assert notes[0].startswith("'rooms': empty in 80 rows, but never in training")
    assert notes[1].startswith("'town': 80 rows with a category the model does not know ('Bonn')")
    assert notes[1] in result.stderr


def test_parquet_and_csv_give_the_same(tmp_path: Path, folder: Path) -> None:
    frame = houses()
    frame.assign(sold=pd.to_datetime(frame.sold), town=frame.town.astype("category")).to_parquet(tmp_path / "h.parquet")
    for file, out in ((tmp_path / "h.parquet", "a.csv"), (folder / "houses.csv", "b.csv")):
        assert run("predict", folder / "price", file, "--out", tmp_path / out).exit_code == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


# --- evaluate and report ----------------------------------------------------------------------------------------


def test_evaluate(tmp_path: Path, folder: Path) -> None:
    new = houses(60, seed=1)
    new.loc[3, "dear"] = None
    new.to_csv(tmp_path / "new.csv", index=False)
    result = run("evaluate", folder / "dear", tmp_path / "new.csv", "--json")
    content = json.loads(result.stdout)
    assert content["n_rows"] == 59
    assert set(content["metrics"]) == {"accuracy", "log_likelihood", "ece", "auc", "brier"}
    assert content["metrics"]["accuracy"] > 0.8
    assert "1 row without a value of 'dear' left out" in content["notes"]
    text = run("evaluate", folder / "price", tmp_path / "new.csv").stdout
    assert text.startswith("scores of 60 rows of new.csv:")


def test_report_is_made_again_from_the_model(tmp_path: Path, folder: Path) -> None:
    result = run("report", folder / "price", "--out", tmp_path / "r.html")
    assert result.exit_code == 0
    assert (tmp_path / "r.html").read_text() == (folder / "price" / "report.html").read_text()
    inside = run("report", folder / "dear" / "model.bali", "--json")
    assert json.loads(inside.stdout) == {"report": str(folder / "dear" / "report.html")}


# --- exit codes and interruptions -------------------------------------------------------------------------------


def test_exit_codes_of_the_program_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from bali.cli import app; app()", "fit", str(tmp_path / "no.csv"), "--target", "y"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr == f"error: no file at '{tmp_path / 'no.csv'}'\n"
    assert process.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "houses.csv"),
        ("fit", "houses.csv", "--target", "price", "--holdout", "1.5"),
        ("fit", "houses.csv", "--target", "price", "--task", "guessing"),
        ("predict", "model"),
        ("predict", "model", "houses.csv", "--coverage", "1"),
        ("predict", "model", "houses.csv", "--out", "-", "--json"),
    ],
)
def test_wrong_usage_is_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_interrupted_training_keeps_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def impatient_bar(talk: Talk) -> Iterator[Callable[[Progress], None]]:
        def on_step(progress: Progress) -> None:
            if progress.step == 30:
                raise KeyboardInterrupt

        yield on_step

    monkeypatch.setattr(fit, "training_bar", impatient_bar)
    result = run("fit", write_houses(tmp_path), *REGRESSION, "--members", 2, "--out", tmp_path / "m", "--json")
    assert result.exit_code == 0
    content = json.loads(result.stdout)
    assert content["steps"] == 30
    assert "training was interrupted; the best posterior so far is kept" in content["notes"]
    assert (tmp_path / "m" / "model.bali").is_file()


def test_interrupted_before_that_is_130_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fit, "write_results", interrupted)
    monkeypatch.setattr(fit, "read_training_table", interrupted)
    result = run("fit", write_houses(tmp_path), *REGRESSION, "--out", tmp_path / "m")
    assert (result.exit_code, result.stderr) == (130, "interrupted; no file was written\n")
    assert [path.name for path in tmp_path.iterdir()] == ["houses.csv"]


def test_a_terminal_shows_a_bar_with_time_left_and_scores() -> None:
    talk = Talk()
    talk.stderr = Console(file=io.StringIO(), force_terminal=True, width=80)
    with training_bar(talk) as on_step:
        on_step(Progress(step=10, max_steps=40, log_likelihood=-1.25, validation_score=-1.5))
    assert isinstance(talk.stderr.file, io.StringIO)
    shown = Text.from_ansi(talk.stderr.file.getvalue()).plain
    assert "10/40" in shown
    assert "at most" in shown
    assert "log-lik. -1.250, validation -1.500" in shown
