"""Runs of hours: killed and gone on with they are the uninterrupted ones; seeds with shared batches are seeds alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from bali import files
from bali.files import ModelFileError
from bali_benchmarks.baselines.training import Batches
from bali_benchmarks.reproduce import classification, long_runs, paper_settings, regression
from bali_benchmarks.reproduce.courses import AdamCourse, BaliCourse, Course, classifier_course
from bali_benchmarks.reproduce.job import Line
from bali_benchmarks.reproduce.pools import Pool
from support.stand_ins import bent_line, images, table

METHODS = ["paper", "local", "map", "mc_dropout"]


class Killed(Exception):
    pass


def killed_at(step: int) -> Any:
    """Training that ends with an error before this step, as a kill would."""
    advance = Course.advance

    def until(self: Course) -> None:
        if self.step == step - 1:
            raise Killed
        advance(self)

    return patch.object(Course, "advance", until)


def without_seconds(lines: list[Line]) -> list[Line]:
    plain: list[Line] = json.loads(json.dumps(lines))
    for line in plain:
        del line["seconds"]
        line.get("curve", {}).pop("seconds", None)
    return plain


def images_run(method: str) -> Callable[[Path | None], list[Line]]:
    setting = replace(paper_settings.CLASSIFICATION["mnist"].quick(), batch_size=70, n_steps=25, hidden=(9, 8))
    data, others = images("mnist"), images("fashion_mnist").X
    return lambda path: classification.paper_scores(data, setting, method, others, 5, keep_in=path)


def table_run(method: str) -> Callable[[Path | None], list[Line]]:
    setting = replace(paper_settings.CLASSIFICATION["spam"].quick(), batch_size=70, n_steps=25, hidden=(9, 8))
    return lambda path: classification.paper_scores(table(), setting, method, None, 5, keep_in=path)


def regression_run() -> Callable[[Path | None], list[Line]]:
    setting = replace(paper_settings.REGRESSION["redwine"].quick(), batch_size=25, n_steps=25, hidden=(9,))
    return lambda path: regression.paper_scores(bent_line("redwine"), setting, published=True, keep_in=path)


RUNS = {f"{kind}-{m}": make(m) for kind, make in (("images", images_run), ("table", table_run)) for m in METHODS}
RUNS["regression"] = regression_run()


@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_is_the_uninterrupted_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, wherever it was killed: at 8 in the middle of an epoch, at 19 for the second time."""
    monkeypatch.setattr(long_runs, "SAVE_SECONDS", 0.0)
    run, path = RUNS[name], tmp_path / "folder" / "some.run"
    whole = run(None)
    for step in (8, 19):
        with killed_at(step), pytest.raises(Killed):
            run(path)
    meta, _ = files.read(path, long_runs.KIND)
    assert meta["course"]["step"] == 18
    with killed_at(10):  # steps that were taken are not taken again
        again = run(path)
    assert without_seconds(again) == without_seconds(whole)
    assert all(line["seconds"] >= 0 for line in again)


def test_the_curve_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "some.run"
    with killed_at(20), pytest.raises(Killed):
        table_run("map")(path)
    seen = json.loads(path.with_suffix(".curve.json").read_text())
    checks = [step for step in classification.check_steps(25, 5) if step < 20]
    assert seen["step"] == checks[-1]
    assert [curve["steps"] for curve in seen["curves"]] == [checks] * 2
    assert not path.exists()  # which is written every few minutes


def test_a_run_of_other_settings_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_runs, "SAVE_SECONDS", 0.0)
    path = tmp_path / "some.run"
    with killed_at(9), pytest.raises(Killed):
        table_run("paper")(path)
    other = replace(paper_settings.CLASSIFICATION["spam"].quick(), batch_size=70, n_steps=24, hidden=(9, 8))
    assert without_seconds(classification.paper_scores(table(), other, "paper", None, 5, keep_in=path)) == without_seconds(
        classification.paper_scores(table(), other, "paper", None, 5)
    )


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "some.run"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ModelFileError, match=r"some\.run"):
        table_run("map")(path)


# --- seeds that share their rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_members_with_shared_batches_are_members_with_the_same_rows_each(method: str) -> None:
    """What is computed once for all of them is what every one of them would compute."""
    setting = replace(paper_settings.CLASSIFICATION["mnist"].quick(), batch_size=60, n_steps=12, hidden=(7, 6))
    pool = classification.pool_of(images("mnist"), setting)
    assert pool.shares_rows
    plain = replace(pool, shares_rows=False)

    batches = Batches(pool.rows[:1], 60, torch.Generator().manual_seed(5))
    shared = classifier_course(method, pool, setting, paper_settings.ADAM["mnist"])
    single = classifier_course(method, plain, setting, paper_settings.ADAM["mnist"])
    for step, rows in zip(range(1, 13), batches, strict=False):
        shared.step = single.step = step
        shared.take(*pool.batch(rows))
        single.take(*plain.batch(rows.expand(2, -1)))
    for one, two in zip(states(shared), states(single), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)  # float32; products of other shapes round otherwise


def states(course: Course) -> list[torch.Tensor]:
    if isinstance(course, BaliCourse):
        return [layer.posterior.mean for layer in course.inference.state.layers.values() if layer.posterior is not None]
    assert isinstance(course, AdamCourse)
    return [value for name, value in course.state.items() if name.startswith("weight.")]


def test_pools_of_tables_have_rows_of_their_own() -> None:
    setting = paper_settings.CLASSIFICATION["spam"].quick()
    pool: Pool = classification.pool_of(table(), setting)
    assert not pool.shares_rows
    x, y = pool.batch(pool.rows[:, :3])
    assert x.shape == (2, 3, 4)
    assert y.shape == (2, 3)
