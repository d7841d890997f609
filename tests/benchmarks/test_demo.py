"""The demonstration, run in small."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from rich.console import Console
from typer.testing import CliRunner

from bali_benchmarks import demo
from bali_benchmarks.commands.main import app

PICTURES = ["sines-trend.png", "sinc.png", "two-moons.png", "overview.png"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[demo.Result], str]:
    out = tmp_path_factory.mktemp("demo") / "pictures"
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    results = demo.run(out, quick=True, console=console)
    assert isinstance(console.file, io.StringIO)
    return out, results, console.file.getvalue()


def test_pictures_are_written_and_not_blank(quick: tuple[Path, list[demo.Result], str]) -> None:
    out, _, _ = quick
    assert sorted(p.name for p in out.iterdir()) == sorted([*PICTURES, "results.json"])
    for name in PICTURES:
        pixels = imread(out / name)
        assert min(pixels.shape[:2]) > 400
        assert len(np.unique(pixels[::5, ::5, :3].reshape(-1, 3), axis=0)) > 100


def test_results_are_the_returned_ones(quick: tuple[Path, list[demo.Result], str]) -> None:
    out, results, _ = quick
    written = [demo.Result(**row) for row in json.loads((out / "results.json").read_text())]
    assert written == results
    assert [r.name for r in results] == ["sines-trend", "sinc", "two-moons"]


def test_fits_are_good_and_calibrated(quick: tuple[Path, list[demo.Result], str]) -> None:
    sines, peak, moons = quick[1]
    assert sines.fit_train < 0.06  # the noise is 0.02, the function's own spread 0.5
    assert peak.fit_train < 0.12  # the noise is 0.1
    assert moons.fit_train > 0.95
    assert moons.fit_test > 0.93
    assert sines.log_likelihood_test > 0.7
    assert peak.log_likelihood_test > 0.5
    assert moons.log_likelihood_test > -0.25
    assert sines.calibration_test > 0.85
    assert 0.85 < peak.calibration_test < 0.998  # the paper's floor is as large as this noise: intervals are wide
    assert moons.calibration_test < 0.06


def test_uncertainty_grows_away_from_the_data(quick: tuple[Path, list[demo.Result], str]) -> None:
    sines, peak, moons = quick[1]
    assert sines.std_outside > 3 * sines.std_inside
    assert peak.std_outside > 3 * peak.std_inside
    assert moons.std_outside > 1.5 * moons.std_inside


def test_table_fits_a_terminal(quick: tuple[Path, list[demo.Result], str]) -> None:
    text = quick[2]
    _, peak, moons = quick[1]
    assert "…" not in text
    assert f"RMSE {peak.fit_train:.3f}" in text
    assert f"ECE {moons.calibration_test:.3f}" in text
    assert "overview.png" in text


def small(name: str) -> demo.Setting:
    found = next(s for s in demo.settings() if s.data.name == name)
    return replace(found, n_steps=20, width=16, n_samples=8, n_grid=10)


def test_settings_are_the_papers() -> None:
    sines, peak, moons = demo.settings()
    assert sines.init_std == peak.init_std == 3.0
    assert sines.prior_std == peak.prior_std == 80.0
    assert (moons.init_std, moons.prior_std) == (1.0, 20.0)
    assert {s.width for s in demo.settings()} == {s.n_samples for s in demo.settings()} == {256}


def test_prior_and_initial_weights_have_the_papers_scales() -> None:
    setting = replace(small("sinc"), width=200, n_steps=1)
    inference = demo.fit(setting)
    variances = {name: 1.0 / float(state.prior.precision.diagonal()[0]) for name, state in inference.state.layers.items()}
    assert variances["0"] == pytest.approx(80.0**2)
    assert variances["2"] == variances["6"] == pytest.approx(80.0**2 / 201)


def test_rate_decays_twice() -> None:
    setting = replace(small("sinc"), n_steps=100)
    assert [setting.ema_rate(t) for t in (1, 60, 61, 80, 81, 100)] == pytest.approx([0.2, 0.2, 0.04, 0.04, 0.008, 0.008])


def test_every_step_is_reported_and_runs_repeat() -> None:
    seen: list[float] = []
    first = demo.experiment(small("sines-trend"), seen.append)
    second = demo.experiment(small("sines-trend"))
    assert len(seen) == 20
    assert np.isfinite(seen).all()
    assert seen[-1] > seen[0]
    assert first.result.log_likelihood_test == second.result.log_likelihood_test
    assert torch.equal(first.on_grid.log_prob(torch.zeros(10)), second.on_grid.log_prob(torch.zeros(10)))


def test_threads_are_as_before() -> None:
    before = torch.get_num_threads()
    with demo._one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_command_writes_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = [small(name) for name in ("sines-trend", "sinc", "two-moons")]
    monkeypatch.setattr(demo, "settings", lambda: tiny)
    monkeypatch.setattr(demo.Setting, "quick", lambda self: self)
    ran = CliRunner().invoke(app, ["demo", "--quick", "--out", str(tmp_path / "new" / "folder")])
    assert ran.exit_code == 0, ran.output
    assert (tmp_path / "new" / "folder" / "overview.png").stat().st_size > 10_000


def test_command_refuses_a_file_as_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    ran = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "taken")])
    assert ran.exit_code == 2
