"""Readings of the paper, each of which changes what it says; the table of verdicts, which says what the lines say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bali_benchmarks import datasets
from bali_benchmarks.reproduce import paper_settings, pools, readings, readings_page, verdicts
from bali_benchmarks.reproduce.job import Job, Line, stamped
from bali_benchmarks.reproduce.readings import READINGS, Reading, ReadingCourse, setting_of
from support.stand_ins import bent_line


def pool_and_setting() -> tuple[pools.Pool, paper_settings.PaperSetting]:
    setting = replace(paper_settings.REGRESSION["kin8nm"].quick(), effective_share=0.25, n_steps=3)
    return pools.table_pool(pools.splits_of(bent_line("kin8nm"), setting, published=True), 0), setting


@pytest.mark.parametrize("name", [name for name in READINGS if name not in ("base", "noise-drawn")])
def test_every_reading_is_another_training(name: str) -> None:
    pool, setting = pool_and_setting()
    courses = [ReadingCourse(pool, setting_of(r, setting), r) for r in (READINGS["base"], READINGS[name])]
    for course in courses:
        for _ in range(3):
            course.advance()
    one, two = (course.inference.state.layers["0"] for course in courses)
    assert one.posterior is not None
    assert two.posterior is not None
    other = [course.inference.posteriors["2"] for course in courses]
    same = bool((one.posterior.mean == two.posterior.mean).all() and (other[0].scale == other[1].scale).all())
    assert same == (name == "rate-constant" and setting.rate_at(3) == setting.ema_rate)


@pytest.mark.parametrize(("name", "hidden", "output"), [("u0-zero", 0.0, 0.0), ("noise-mean", -33.0, -2.0)])
def test_degrees_of_freedom_are_those_of_the_reading(name: str, hidden: float, output: float) -> None:
    """u₀ is D_y + 1 otherwise; less twice that of the mode's divisor u + D_y + 1 makes it the mean's, u − D_y − 1."""
    pool, setting = pool_and_setting()
    course = ReadingCourse(pool, setting, READINGS[name])
    course.advance()
    layers = course.inference.state.layers
    assert [layers[key].prior.dof for key in ("0", "2")] == [hidden, output]
    course.advance()
    n_eff = 0.25 * pool.n_data
    assert layers["0"].prior.n_outputs == 32
    posteriors = course.inference.posteriors
    assert [posteriors[key].dof for key in ("0", "2")] == pytest.approx([hidden + n_eff, output + n_eff])


def test_all_rows_may_count_in_the_degrees_of_freedom() -> None:
    pool, setting = pool_and_setting()
    course = ReadingCourse(pool, setting, READINGS["rows-in-dof"])
    for _ in range(2):
        course.advance()
    assert course.inference.posteriors["2"].dof == pytest.approx(2.0 + pool.n_data)


def test_drawn_noise_differs_from_draw_to_draw() -> None:
    pool, setting = pool_and_setting()
    for reading, n_values in ((READINGS["base"], 1), (READINGS["noise-drawn"], setting.n_samples)):
        course = ReadingCourse(pool, setting, reading)
        course.advance()
        assert len({float(noise) for noise in course.predictive(0).noise.flatten()}) == n_values


def test_a_line_for_each_split_of_both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load", bent_line)
    job = Job("readings", "concrete", "initial-small", None, True)
    lines = stamped(job, readings.run(job))
    assert [(line["split"], line["published"]) for line in lines] == [(0, True), (1, False)]
    assert all(line["settings"]["init_std"] == pytest.approx(1 / 3) for line in lines)
    assert {job.method for job in readings.jobs(False)} == set(READINGS)


def test_a_reading_is_worth_its_paired_difference() -> None:
    def lines(reading: str, rmse: float) -> list[Line]:
        common: Line = {"set": "concrete", "method": reading, "share": 0.25, "log_likelihood": -2.976}
        return [common | {"split": k, "published": k < 3, "rmse": rmse + k} for k in range(6)]

    page = "\n".join(readings_page.section({"readings": [*lines("base", 1.0), *lines("u0-zero", 0.5)]}))
    assert f"| {READINGS['base'].title} | 3.500 ± 0.764 | -2.976 ± 0.000 | 2 of 2 |" in page
    assert f"| {READINGS['u0-zero'].title} | -0.500 ± 0.000 | 0.000 ± 0.000 | 2 of 2 |" in page
    assert "concrete 25 %" in page
    page = "\n".join(readings_page.section({"readings": [*lines("base", 90.0), *lines("u0-zero", 0.5)]}))
    assert f"Most figures, 2, are met by: {READINGS['u0-zero'].title}." in " ".join(page.split())
    assert f"Not run yet: {len(READINGS) - 2} of {len(READINGS)} readings." in " ".join(page.split())
    assert isinstance(READINGS["base"], Reading)


# --- verdicts ---------------------------------------------------------------------------------------------------


def rows_of(found: list[str], claim: str) -> list[str]:
    (row,) = [line for line in found if line.startswith(f"| {claim}")]
    return [cell.strip() for cell in row.strip("|").split("|")]


def class_lines(method: str, share: float, n: int = 3, **scores: Any) -> list[Line]:
    common = {"experiment": "classification", "method": method, "share": share, "seconds": 1.0}
    sets = paper_settings.CLASSIFICATION
    return [common | {"set": name, "split": k} | scores for name in sets for k in range(n)]


def test_nothing_is_known_of_runs_that_are_not_in_full() -> None:
    short = class_lines("paper", 0.05, accuracy=0.9, ece=0.01) + class_lines("mc_dropout", 0.05, accuracy=0.9, ece=0.02)
    page = verdicts.section({"classification": short})
    for claim in ("BALI is as accurate", "and is better calibrated", "classification: its accuracy"):
        rows = [line for line in page if line.startswith(f"| {claim}")]
        assert rows
        assert all("not known yet (0 of 5 in full)" in row for row in rows)


def test_claims_are_judged_by_runs_in_full() -> None:
    full = class_lines("paper", 1.0, accuracy=0.9, ece=0.01) + class_lines("mc_dropout", 1.0, accuracy=0.9, ece=0.02)
    page = verdicts.section({"classification": full})
    assert rows_of(page, "BALI is as accurate")[2] == "agrees"
    assert rows_of(page, "and is better calibrated")[2] == "agrees"
    assert rows_of(page, "classification: its accuracy and calibration error of BALI")[2] == "does not agree"
    assert "(../results/reproduce-classification.jsonl)" in rows_of(page, "BALI is as accurate")[3]
    worse = class_lines("paper", 1.0, accuracy=0.9, ece=0.03) + class_lines("mc_dropout", 1.0, accuracy=0.9, ece=0.02)
    assert rows_of(verdicts.section({"classification": worse}), "and is better calibrated")[2] == "does not agree"


def test_what_is_true_of_half_is_true_in_part() -> None:
    assert verdicts.Found(4, 4, 4).verdict == "agrees"
    assert verdicts.Found(2, 4, 4).verdict == "in part"
    assert verdicts.Found(1, 4, 4).verdict == "does not agree"
    assert verdicts.Found(3, 3, 4).verdict == "not known yet (3 of 4 in full)"
    assert verdicts.section({}) == []
