"""The measurements of docs/performance.md: how they time, what they conclude, and a small run of each."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from bali.training import course as courses
from bali_benchmarks.commands.main import app
from bali_benchmarks.commands.performance import PERFORMANCE
from bali_benchmarks.datasets import DataError
from bali_benchmarks.lines import read_lines
from bali_benchmarks.networks.network_tasks import NetworkTask
from bali_benchmarks.networks.task_networks import perceptron
from bali_benchmarks.networks.task_rows import Rows
from bali_benchmarks.performance import (
    arrival,
    memory,
    peers,
    prediction_time,
    processes,
    stacked_members,
    step_time,
    widths,
)
from bali_benchmarks.performance.arithmetic import step_flops
from bali_benchmarks.performance.distributed_model import Machine, cost
from bali_benchmarks.performance.measurement import Bar, Line, Measurement
from bali_benchmarks.performance.performance_page import BENCHES, all_bars, to_markdown
from bali_benchmarks.performance.performance_runs import run
from bali_benchmarks.performance.timing import Timings, interleaved
from support.performance_cases import SMALL, FakeClock, few_images

ROOT = Path(__file__).parents[2]


# --- timing -----------------------------------------------------------------------------------------------------


def test_competitors_take_turns_and_the_first_one_changes() -> None:
    clock, called = FakeClock(), []

    def competitor(name: str, seconds: Iterator[float]) -> Callable[[], None]:
        def call() -> None:
            called.append(name)
            clock.spend(next(seconds))

        return call

    calls = {
        "a": competitor("a", iter([100.0, 100.0, 1.0, 3.0, 2.0, 2.0, 9.0, 11.0])),
        "b": competitor("b", itertools.repeat(4.0)),
    }
    times = interleaved(calls, rounds=3, warmup=1, repeats=2, clock=clock)
    assert "".join(called) == "aabb" + "bbaa" + "aabb" + "bbaa"
    assert times.seconds == {"a": [2.0, 2.0, 10.0], "b": [4.0, 4.0, 4.0]}
    assert times.median("a") == 2.0
    assert times.ratio("a", "b") == 0.5


def test_quartiles_are_those_of_the_rounds() -> None:
    times = Timings({"a": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [1.0, 1.0, 1.0, 2.0, 5.0]})
    assert times.quartiles_of_ratio("a", "b") == (1.0, 2.5)  # of 1, 2, 3, 2, 1
    assert Timings({"a": [3.0], "b": [2.0]}).quartiles_of_ratio("a", "b") == (1.5, 1.5)


# --- arithmetic -------------------------------------------------------------------------------------------------


def test_operations_by_hand() -> None:
    """Layers (D, E) = (3, 2) and (3, 1), five rows."""
    flops = step_flops((2, 2, 1), 5)
    assert flops["forward"] == 2 * 5 * 3 * 2 + 2 * 5 * 3 * 1
    assert flops["backward"] == 2 * 5 * 2 * 1
    first = 5 * 12 + 2 * 5 * 6 + 5 * 6  # six entries of XᵀX, six of XᵀG, three of GᵀG, five multiply-adds each
    second = 5 * 12 + 2 * 5 * 3 + 5 * 2
    assert flops["moments"] == first + second
    assert flops["factors"] == (27 + 8) / 3 + (27 + 1) / 3
    assert flops["solves"] == (36 + 18 + 18 + 12) + (18 + 6 + 9 + 3)


def test_operations_of_the_moments_are_one_half_of_the_products() -> None:
    d, e, n = 201, 100, 1000
    products = 2 * n * (d * d + e * e)
    symmetric = step_flops((d - 1, e), n)["moments"] - 2 * n * d * e
    assert symmetric == pytest.approx(products / 2, rel=0.01)


# --- conclusions ------------------------------------------------------------------------------------------------


def test_a_bar_is_met_at_its_limit_and_missed_above_or_where_nothing_was_reached() -> None:
    assert Bar("x", 1.6, 1.6).verdict == "met"
    assert Bar("x", 1.61, 1.6).verdict == "missed"
    assert Bar("x", None, 1.6).verdict == "missed"


NETWORK = "784-256-256-10, 256 rows"


def step_line(network: str, ratio: float) -> Line:
    figures = {"ms": 10 * ratio, "adam_ms": 10.0, "ratio": ratio, "ratio_quartiles": [ratio, ratio]}
    return {"bench": "step", "network": network, "rounds": 40, "steps_per_round": 3, "threads": 2} | figures


def test_verdicts_stand_on_the_page() -> None:
    lines = [step_line(NETWORK, 2.4), step_line("LeNet-5, 512 images", 1.3), step_line("a network of old", 9.0)]
    assert [bar.is_met for _, bar in all_bars(lines)] == [True, False]
    page = to_markdown(lines)
    assert f"| `step` | {NETWORK}: step, of Adam's | 2.40 | ≤ 2.50 | met |" in page
    assert "| `step` | LeNet-5, 512 images: step, of Adam's | 1.30 | ≤ 1.20 | missed |" in page
    assert "Medians of 40 interleaved rounds; threads: 2." in page


@pytest.mark.parametrize(("member_ms", "met"), [(0.14, True), (0.15, False)])
def test_bars_of_members_are_for_the_steps_of_tables(member_ms: float, met: bool) -> None:
    line = {"bench": "members", "members": 20, "member_ms": member_ms, "single_ms": 0.9}
    line |= {"paper_member_ms": 9.0, "paper_single_ms": 9.0}
    own, single = stacked_members.bars([line])
    assert own.is_met is met
    assert single.is_met


def test_exponents_of_made_up_growth() -> None:
    lines = [step_line("", 1.0) | {"width": w, "ms": 0.01 * w**2.5, "adam_ms": 0.02 * w**2.0} for w in (64, 256, 1024)]
    assert widths.exponents(lines) == pytest.approx((2.5, 2.0))
    (bar,) = widths.bars(lines)
    assert bar.measured == pytest.approx(0.5)
    assert not bar.is_met
    assert widths.bars(lines[:1]) == []


def two_processes() -> list[dict[str, Any]]:
    """Made up: work of 8 ms alone, and of 5 and 4 ms together, when the quicker one waits."""

    def parts(statistics: float, messages: float, factorisation: float) -> dict[str, float]:
        step = statistics + messages + factorisation
        parts = {"statistics": statistics, "messages": messages, "factorisation": factorisation, "step": step}
        return parts | {"work": statistics + factorisation} | size

    size = {"summed": 1000.0, "results": 2000.0}
    speed = {"bytes_per_second": 1e6, "latency": 0.0}
    alone = {"plain": {"step": 0.008}, "1": parts(0.006, 0.0, 0.002)}
    return [
        {"speed": speed, "parts": alone | {"2": parts(0.003, 0.002, 0.002)}},
        {"speed": speed, "parts": {"2": parts(0.003, 0.003, 0.001)}},
    ]


def test_efficiency_is_time_alone_over_the_time_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "run_processes", lambda *_: two_processes())
    (job,) = processes.jobs(sizes=(6, 8, 4), rows=100, counts=(1, 2))
    one, two = job.run()
    assert one["work_efficiency"] == pytest.approx(1.0)
    assert two["work_efficiency"] == pytest.approx(0.008 / 2 / 0.005)
    assert two["efficiency"] == pytest.approx(0.008 / 2 / 0.007)
    assert two["messages_ms"] == pytest.approx(2.0)  # of the one that others waited for
    assert two["model_statistics_ms"] == pytest.approx(3.0)
    assert two["model_factorisation_ms"] < 2.0


def test_cost_of_several_processes_by_hand() -> None:
    """Layers (D, E) = (3, 2) and (3, 1): narrow matrices are sent as a whole."""
    flops = step_flops((2, 2, 1), 5)
    alone, together = cost((2, 2, 1), 5, 1), cost((2, 2, 1), 5, 2)
    assert alone.statistics == flops["forward"] + flops["backward"] + flops["moments"] == 2 * together.statistics
    assert alone.factorisation == pytest.approx(flops["factors"] + flops["solves"])
    assert together.factorisation == pytest.approx((27 + 8) / 3 + 36 + 18 + 18 + 12)  # of the larger layer
    assert alone.summed == together.summed == 4 * (6 + 9 + 4 + 3 + 9 + 1)
    assert alone.results == together.results == 12 * (6 + 3) + 8 * (4 + 1)
    machine = Machine(statistics=1.0, factorisation=2.0, bytes=4.0, latency=0.0)
    assert alone.seconds(machine, 1)["messages"] == 0
    assert together.seconds(machine, 2)["messages"] == (together.summed + together.results) / 4
    assert together.seconds(machine, 2)["factorisation"] == together.factorisation / 2


def test_memory_without_factors_is_held_against_adams(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"BALI": {"peak": 5000, "factors": 1000}, "Adam": {"peak": 2000, "factors": 0}}
    monkeypatch.setattr(memory, "peak_in_new_process", lambda method, **_: peaks[method])
    (line,) = memory.measure("rows", 8, memory.BASE)
    assert line["ratio"] == pytest.approx(2.0)
    (bar,) = memory.bars([line, line | {"ratio": 1.5}])
    assert bar.is_met


def test_factors_are_counted_once_and_without_what_an_optimizer_has() -> None:
    x, y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 10
    job, course = step_time.fit_course(perceptron(3, [], 10), x, y, 40)
    courses.one_step(job, course)
    assert memory.factor_bytes(course.layers) == 4 * (3 * 4 * 4 + 10 * 10)  # A, A + δI and its inverse, and S


# --- runs -------------------------------------------------------------------------------------------------------


def two_blobs() -> NetworkTask:
    """Two classes that a straight line parts."""

    def part(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(300, 3, generator=torch.Generator().manual_seed(seed))
        return x, (x[:, 0] > 0).long()

    return NetworkTask(
        "blobs", lambda: perceptron(3, [4], 2), lambda seed: Rows(part(seed), part(8), part(9)), 0.1, batch=64
    )


def test_arrival_is_the_first_score_that_is_as_good() -> None:
    task = two_blobs()
    easy, hard = (arrival.arrival(task, task.rows(0), 0, wanted) for wanted in (0.6, -1.0))
    assert easy[0] is not None
    assert easy[2] <= 0.6
    assert hard[0] is None  # a probability is at most one
    assert easy[1] < hard[1]


def test_bars_of_arrivals_need_all_of_them() -> None:
    lines = [{"bench": "arrival", "ratio": ratio} for ratio in (0.2, 0.9, 0.5)]
    assert [bar.measured for bar in arrival.bars(lines)] == [0.5, 0.9]
    assert all(bar.is_met for bar in arrival.bars(lines))
    assert not any(bar.is_met for bar in arrival.bars([*lines, {"bench": "arrival", "ratio": None}]))


def tiny_jobs() -> dict[str, list[Measurement]]:
    fit = {"n_train": 100, "n_validation": 50, "batch": 50, "most_epochs": 2, "samples": 2}
    one_each = {name: peers.PEERS[name] for name in ("BALI", "Adam", "MC dropout")}
    small = step_time.Case(lambda: perceptron(3, [4], 10), (3,), 20, 2.0)
    smaller = prediction_time.Case(lambda: perceptron(3, [4], 10), (3,), 4, 2, 0.5)
    return {
        "step": step_time.jobs({"small": small}, rounds=2, repeats=1),
        "widths": widths.jobs(widths=(8, 16), rows=20, rounds=2, repeats=1),
        "memory": memory.jobs(axes={"rows": (8,)}, base={"rows": 8, "width": 4, "depth": 1}),
        "arrival": arrival.jobs(seeds=1, task=two_blobs(), most_scores=2),
        "predict": prediction_time.jobs({"small": smaller}, rows=20, rounds=2),
        "members": stacked_members.jobs(members=2, rows=30, rounds=3, warmup=1, repeats=1),
        "peers": peers.jobs(few_images, methods=one_each, sizes=SMALL, **fit),
        "distributed": processes.jobs(sizes=(6, 8, 4), counts=(1, 2)),
    }


def test_all_measurements_leave_lines_and_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "run_processes", lambda *_: two_processes())
    monkeypatch.setattr(memory, "peak_in_new_process", lambda method, **_: {"peak": 3000, "factors": 1000})
    out, page = tmp_path / "p.jsonl", tmp_path / "docs" / "p.md"
    for name, jobs in tiny_jobs().items():
        lines = run(name, out, page, jobs=jobs)
        assert {line["bench"] for line in lines} == {name}
        assert all(line["threads"] >= 1 for line in lines)
    written = read_lines(out)
    assert page.read_text() == to_markdown(written)
    assert all(f"## {bench.title}" in page.read_text() for bench in BENCHES.values())
    assert {name for name, _ in all_bars(written)} == {
        "widths",
        "memory",
        "arrival",
        "members",
    }  # the small networks have no bars
    ratio = next(line for line in written if line["bench"] == "step")
    assert ratio["ratio"] == pytest.approx(ratio["ms"] / ratio["adam_ms"], rel=1e-3)


def test_what_is_done_is_not_run_again_unless_asked_for(tmp_path: Path) -> None:
    out, page, ran = tmp_path / "p.jsonl", tmp_path / "p.md", []

    def job(variant: str, ratio: float) -> Measurement:
        def measured() -> list[Line]:
            ran.append(variant)
            return [step_line(variant, ratio)]

        return Measurement({"network": variant}, measured)

    run("step", out, page, jobs=[job(NETWORK, 2.0)])
    run("step", out, page, jobs=[job(NETWORK, 2.2), job("LeNet-5, 512 images", 1.5)], threads=1)
    assert ran == [NETWORK, "LeNet-5, 512 images"]
    assert [line["ratio"] for line in read_lines(out)] == [2.0, 1.5]
    run("step", out, page, jobs=[job(NETWORK, 2.1234567)], again=True)
    assert [line["ratio"] for line in read_lines(out)] == [2.1235]


def test_threads_are_as_before_afterwards(tmp_path: Path) -> None:
    seen: list[int] = []

    def look() -> list[Line]:
        seen.append(torch.get_num_threads())
        return [step_line(NETWORK, 1.0)]

    before = torch.get_num_threads()
    run("step", tmp_path / "p.jsonl", tmp_path / "p.md", threads=before + 1, jobs=[Measurement({}, look)])
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_the_command_prints_the_table_and_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, page = tmp_path / "p.jsonl", tmp_path / "p.md"
    lines = [step_line(name, 2.0) for name in step_time.CASES]  # all that there is to run
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = CliRunner().invoke(app, ["step", "--out", str(out), "--page", str(page)])
    assert done.exit_code == 0, done.output
    assert f"| {NETWORK} | 20.0 | 10.0 | 2.00 | 2.00 to 2.00 |" in done.output
    assert json.loads(done.output.splitlines()[-1]) == lines[-1]
    assert set(PERFORMANCE) == set(BENCHES)


def test_the_command_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> list[Line]:
        raise DataError("there is no MNIST here")

    monkeypatch.setattr("bali_benchmarks.performance.performance_runs.run", missing)
    done = CliRunner().invoke(app, ["peers", "--out", str(tmp_path / "p.jsonl")])
    assert done.exit_code == 1
    assert "there is no MNIST here" in done.output


def test_page_in_the_repository_is_that_of_the_results() -> None:
    lines = read_lines(ROOT / "results/performance.jsonl")
    assert (ROOT / "docs/performance.md").read_text() == to_markdown(lines)
