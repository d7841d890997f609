"""Several processes on this machine find the posterior of one process with all the rows."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

import bali
from bali.conjugate.symmetric import strips, whole
from bali.inference.distributed import shard
from bali.inference.joint_step import owners, update_cost
from bali_benchmarks.performance import processes
from bali_benchmarks.performance.distributed_process import PARTS
from support import distributed_cases as cases
from support.networks import data, inference, mlp
from support.seeded_runs import TWO_PROCESSES, assert_as_recorded
from support.starting_processes import Found, errors, results_of_processes, start_processes
from support.tolerances import FLOAT32, FLOAT32_STEPS, ROUNDING, STEPS

EXAMPLE = Path(__file__).parents[2] / "examples" / "distributed.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distributed")


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    return results_of_processes(folder)


@pytest.fixture(autouse=True)
def _one_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALI_TEST_FOLDER", str(folder))


def assert_close(results: cases.Results, expected: cases.Results, tolerance: float) -> None:
    assert results.keys() == expected.keys()
    for key, value in expected.items():
        found, wanted = results[key].double(), value.double()
        message = f"{key}: largest difference {float((found - wanted).abs().max()):g}"
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, msg=message)


# --- the same posterior -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", cases.SAME)
def test_processes_find_the_posterior_of_one(found: Found, name: str, size: int) -> None:
    expected = cases.SAME[name](cases.ALONE)
    for rank in range(size):
        assert_close(found[size, rank][name], expected, FLOAT32 if "float32" in name else STEPS)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", cases.CASES)
def test_all_processes_hold_the_same_posterior(found: Found, name: str, size: int) -> None:
    """Bit for bit, but for U: of a result, only one half is sent."""
    first = found[size, 0][name]
    for rank in range(1, size):
        own = found[size, rank][name]
        assert_close(own, first, ROUNDING)
        assert all(torch.equal(own[key], value) for key, value in first.items() if not key.endswith(("scale", "noise")))


def test_the_first_process_gives_the_start(found: Found) -> None:
    assert_close(found[4, 3]["another start"], cases.another_start(cases.ALONE), STEPS)


@pytest.mark.parametrize("size", [2, 4])
def test_a_failure_of_one_is_a_failure_of_all_and_changes_nothing(found: Found, size: int) -> None:
    x, y = data("gaussian", 24, 4, 2)
    run = inference(mlp((4, 8, 2)))
    for _ in range(2):
        run.step(x, y)
    assert_close(found[size, 1]["failing"], cases.results(run), STEPS)


@pytest.mark.parametrize("name", TWO_PROCESSES)
def test_two_processes_give_the_recorded_numbers(found: Found, name: str) -> None:
    assert_as_recorded(TWO_PROCESSES[name], found[2, 0][name])


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4])
def test_a_run_goes_on_with_another_number_of_processes(found: Found, folder: Path, size: int) -> None:
    x, y = data("gaussian", 24, 4, 2)
    whole_run, resumed = inference(mlp((4, 8, 2))), inference(mlp((4, 8, 2), seed=5))
    resumed.load(folder / f"run-{size}.bali")
    assert resumed.state.step == 2
    for step in range(4):
        whole_run.step(x, y)
        if step >= 2:
            resumed.step(x, y)
    assert_close(cases.results(resumed), cases.results(whole_run), STEPS)
    assert_close(found[size, 0]["going on"], cases.results(whole_run), STEPS)


def test_a_file_that_cannot_be_written_fails_on_all(found: Found) -> None:
    assert all(results["not saved"]["failed"] == 1 for results in found.values())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_silent_process_ends_the_others_and_leaves_the_file(tmp_path: Path, how: signal.Signals) -> None:
    """In the midst of training of two processes, with nobody to tell the other one."""
    first, second = start_processes(2, cases.endless_training, tmp_path)
    try:
        while not (tmp_path / "saved-1").exists():
            assert second.is_alive(), errors(tmp_path)
            time.sleep(0.05)
        assert second.pid is not None
        os.kill(second.pid, how)
        first.join(timeout=60)
        assert first.exitcode == 1
    finally:
        for process in (first, second):
            process.kill()
    assert "DistributedError: a process of this run has ended or does not answer" in errors(tmp_path)
    resumed = inference(mlp((4, 8, 2)))
    resumed.load(tmp_path / "run.bali")
    steps = resumed.state.step
    assert steps >= 5
    resumed.step(*data("gaussian", 24, 4, 2))
    assert resumed.state.step == steps + 1


# --- measurements -----------------------------------------------------------------------------------------------------


def test_processes_measure_themselves(found: Found, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are positive and bytes are those of the model, but for the few numbers of the short message."""
    assert found
    measured = [json.loads((folder / f"measured-{r}.json").read_text()) for r in range(4)]
    monkeypatch.setattr(processes, "run_processes", lambda *_: measured)
    (job,) = processes.jobs(sizes=cases.SIZES, rows=12)
    lines = job.run()
    assert [line["processes"] for line in lines] == [1, 2, 4]
    for line in lines:
        assert min(line["ms"], *(line[f"{part}_ms"] for part in PARTS)) > 0
        assert 0 <= line["summed_bytes"] - line["model_summed_bytes"] <= 8 * (1 + 3 + 2 + 2)
        assert line["results_bytes"] - line["model_results_bytes"] == 8 * line["processes"]
    assert sum(row.startswith("| 4 |") for row in processes.section(lines)) == 2


def test_the_example_runs_plain_and_under_torchrun(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    example = [str(EXAMPLE), "--steps", "3", "--file"]
    runpy.run_path(str(EXAMPLE))["main"]([*example[1:], str(tmp_path / "plain.bali")])
    plain = capfd.readouterr().out
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, *example, str(tmp_path / "two.bali")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert plain.startswith("1 processes, 3 steps: accuracy 0.")
    assert done.stdout.startswith("2 processes, 3 steps: accuracy 0.")
    nll = [float(out.split()[-1]) for out in (plain, done.stdout)]
    assert nll[0] == pytest.approx(nll[1], rel=FLOAT32_STEPS)


# --- parts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 7, 8, 9, 64, 100])
def test_strips_make_the_symmetric_matrix(d: int) -> None:
    rows = torch.randn(3, 5, d, generator=torch.Generator().manual_seed(d))
    matrix = rows.mT @ rows
    matrix = matrix + matrix.mT
    parts = strips(matrix)
    assert torch.equal(whole(torch.empty_like(matrix), iter(parts)), matrix)
    if d >= 64:
        assert sum(t.numel() for t in parts) < 0.6 * matrix.numel()


def test_every_layer_has_one_owner_and_work_is_balanced() -> None:
    states = inference(mlp((4, 30, 40, 40, 40, 30, 2))).state.layers
    owner = owners(states, 2)
    assert owner.keys() == states.keys()
    load = [sum(update_cost(states[name]) for name in states if owner[name] == r) for r in (0, 1)]
    assert min(load) > 0.6 * max(load)
    assert set(owners(states, 100).values()) == set(range(len(states)))  # no more than there are layers


def test_a_plain_run_is_alone() -> None:
    assert bali.distributed.start().type in ("cpu", "cuda")
    assert (bali.distributed.rank(), bali.distributed.world_size()) == (0, 1)
    x = torch.arange(5)
    assert torch.equal(shard(x)[0], x)
    assert inference(mlp((4, 8, 2))).setup.group is None


@pytest.mark.parametrize("n", [0, 1, 3, 4, 10])
def test_shards_are_the_rows_in_order(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    parts = []
    monkeypatch.setattr(bali.distributed, "world_size", lambda: 4)
    for rank in range(4):
        monkeypatch.setattr(bali.distributed, "rank", partial(int, rank))
        parts.append(shard(torch.arange(n))[0])
    assert torch.cat(parts).tolist() == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_shards_need_tensors_of_one_length() -> None:
    with pytest.raises(ValueError, match="same number of rows"):
        shard(torch.zeros(3), torch.zeros(4))


def test_a_group_needs_a_start() -> None:
    with pytest.raises(ValueError, match="was not started"), bali.distributed.using("some"):  # type: ignore[arg-type]
        inference(mlp((4, 8, 2)))
    with bali.distributed.using(None):
        assert inference(mlp((4, 8, 2))).setup.group is None
