"""`bali fit` on a table with every kind of column; exit codes and interruptions."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from bali.cli.talk import Talk, training_bar
from bali.tables.table_model import load_table_model
from bali.training.table_fit import Progress
from support.houses import DEAR, PRICE, QUICK, houses, run, write_houses

# --- fit --------------------------------------------------------------------------------------------------------


def test_fit_says_what_it_does_and_writes_three_files(tmp_path: Path) -> None:
    file, out = write_houses(tmp_path, price=[*houses().price[:-2], None, None]), tmp_path / "model"
    result = run("fit", file, *PRICE, *QUICK, "--out", out)
    assert result.exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["metrics.json", "model.bali", "report.html"]
    assert "houses.csv: 78 rows, 5 columns to learn from (2 of numbers, 2 of categories, 1 of dates)" in result.stdout
    assert "task: regression ('price' holds numbers)" in result.stdout
    assert "2 rows without a value of 'price' left out" in result.stderr
    assert "'sold': dates, used as a number of days" in result.stderr
    assert "coverage_90" in result.stdout
    assert f"bali predict {out} NEW.csv" in result.stdout
    metrics = json.loads((out / "metrics.json").read_text())["metrics"]
    assert set(metrics) == {
        "rmse",
        "mae",
        "r2",
        "log_likelihood",
        "coverage_90",
        "crps",
        "interval_score",
        "pinball",
        "pit_distance",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["houses.csv", "model"]


def test_fit_in_json_has_nothing_else_on_standard_output(tmp_path: Path) -> None:
    result = run("fit", write_houses(tmp_path), *DEAR, *QUICK, "--out", tmp_path / "m", "--json")
    content = json.loads(result.stdout)
    assert (content["task"], content["n_rows"], content["n_holdout"]) == ("classification", 80, 8)
    assert set(content["metrics"]) >= {"accuracy", "log_likelihood", "ece", "brier"}
    assert "task: classification" in result.stderr


def test_quiet_is_quiet(tmp_path: Path) -> None:
    result = run("fit", write_houses(tmp_path), *PRICE, *QUICK, "--out", tmp_path / "m", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_the_same_seed_gives_the_same_model(tmp_path: Path, house_models: Path) -> None:
    assert run("fit", house_models / "houses.csv", *PRICE, *QUICK, "--out", tmp_path / "m").exit_code == 0
    again, first = (
        json.loads((f / "metrics.json").read_text())["metrics"] for f in (tmp_path / "m", house_models / "price")
    )
    assert again == first


def test_a_model_is_replaced_only_by_force_and_other_files_never(tmp_path: Path) -> None:
    file, out = write_houses(tmp_path), tmp_path / "m"
    arguments = ("fit", file, *PRICE, *QUICK, "--out", out)
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
    result = run("fit", write_houses(tmp_path), *PRICE, *QUICK, "--holdout", 0, "--out", tmp_path / "m", "--json")
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


def test_numbers_can_be_categories(tmp_path: Path) -> None:
    file = write_houses(tmp_path)
    assert run("fit", file, *PRICE, *QUICK, "--category", "rooms", "--out", tmp_path / "m").exit_code == 0
    assert "rooms = 3" in load_table_model(tmp_path / "m").encoder.feature_names
    houses().assign(rooms=houses().rooms.astype(float)).to_parquet(tmp_path / "h.parquet")  # 3.0 is the category 3 too
    result = run("predict", tmp_path / "m", tmp_path / "h.parquet", "--out", tmp_path / "p.csv", "--json")
    assert json.loads(result.stdout)["notes"] == []


def test_classes_with_one_row_are_learned_but_not_scored(tmp_path: Path) -> None:
    labels = ["a"] * 40 + ["b"] * 38 + ["c", "d"]
    result = run("fit", write_houses(tmp_path, dear=labels), *DEAR, *QUICK, "--out", tmp_path / "m", "--json")
    content = json.loads(result.stdout)
    assert "auc" not in content["metrics"]
    assert "no AUC: none of the scored rows is of class 'c', 'd'" in content["notes"]
    assert load_table_model(tmp_path / "m").target.classes == ("a", "b", "c", "d")


def test_the_default_folder_is_named_after_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_houses(tmp_path)
    assert run("fit", "houses.csv", *PRICE, *QUICK).exit_code == 0
    assert (tmp_path / "houses-model" / "model.bali").is_file()


# --- exit codes and interruptions -------------------------------------------------------------------------------


def test_exit_codes_of_the_program_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from bali.cli.app import app; app()", "fit", str(tmp_path / "no.csv"), "--target", "y"]
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
            if progress.validation_score is not None:
                raise KeyboardInterrupt

        yield on_step

    monkeypatch.setattr("bali.cli.talk.training_bar", impatient_bar)
    arguments = ("--members", 2, "--max-iter", 1000, "--out", tmp_path / "m", "--json")
    result = run("fit", write_houses(tmp_path), *PRICE, *arguments)
    assert result.exit_code == 0
    content = json.loads(result.stdout)
    assert content["steps"] == 50  # when held-out rows were first looked at
    assert "training was interrupted after 50 steps; the best posterior so far is kept" in content["notes"]
    assert (tmp_path / "m" / "model.bali").is_file()


def test_interrupted_before_that_is_130_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bali.tables.table_training.read_training_table", interrupted)
    result = run("fit", write_houses(tmp_path), *PRICE, "--out", tmp_path / "m")
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
