"""How every method is trained and its settings chosen, seen on methods whose best choice is known."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from bali_benchmarks.baselines import Budget, Fitted, Method, State, Task, fit_members
from bali_benchmarks.baselines.map import MAP
from bali_benchmarks.baselines.method import Setting
from bali_benchmarks.baselines.scoring import NOISE_FACTORS, member_scores
from bali_benchmarks.baselines.training import Batches, replaced, taken, train

BUDGET = Budget(steps=100, batch_size=8)


@dataclass(frozen=True)
class Counter(Method):
    """Says `speed` × the number of its steps, with a noise variance of 1."""

    title: ClassVar[str] = "Counter"
    citation: ClassVar[str] = "–"
    grid: ClassVar[tuple[dict[str, float], ...]] = ({"speed": 0.0}, {"speed": 0.1}, {"speed": -1.0})

    speed: Setting = 1.0

    def start(self, task: Task, generator: torch.Generator) -> State:
        return {"count": torch.zeros(task.members), "noise_variance": torch.ones(task.members)}

    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        return state | {"count": state["count"] + 1}

    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        level = state["count"] * self.speed
        return level[None, :, None, None].expand(1, task.members, x.shape[1], task.layer_sizes[-1])


@dataclass(frozen=True)
class Interrupted(Counter):
    """Ctrl-C at a step, counted over both parts of a fit."""

    at: ClassVar[int]
    steps: ClassVar[itertools.count[int]]

    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        if next(self.steps) == self.at:
            raise KeyboardInterrupt
        return super().step(task, state, x, y, generator)


def fit(kind: type[Method], y: Tensor, **options: object) -> Fitted:
    """To targets (S, n), with inputs that say nothing."""
    arguments = {"hidden_layer_sizes": (), "activation": "relu", "budget": BUDGET} | options
    return fit_members(kind, torch.zeros(*y.shape, 1), y[..., None], **arguments)  # type: ignore[arg-type]


class TestChoice:
    def test_setting_steps_and_noise_of_each_data_set(self) -> None:
        noise = torch.randn(2, 500, generator=torch.Generator().manual_seed(1))
        levels = torch.tensor([[0.1 * 43], [-19.0]])  # 43 and 19 are checkpoints
        fitted = fit(Counter, levels + noise * torch.tensor([[2.0], [0.5]]))
        assert fitted.settings == [{"speed": 0.1}, {"speed": -1.0}]
        assert fitted.steps == [43, 19]
        assert fitted.state["count"].tolist() == [43.0, 19.0]  # each was trained anew, for its own number of steps
        torch.testing.assert_close(fitted.noise_factor.log2(), torch.tensor([2.0, -2.0]), atol=0.51, rtol=0.0)
        torch.testing.assert_close(fitted.noise_variance(), fitted.noise_factor)
        outputs = fitted.outputs(torch.zeros(2, 3, 1), 7, torch.Generator())
        torch.testing.assert_close(outputs[0, :, 0, 0], torch.tensor([4.3, -19.0]))

    def test_given_settings_are_taken(self) -> None:
        fitted = fit(Counter, torch.full((1, 50), 66.0), settings={"speed": 1.0})
        assert fitted.settings == [{"speed": 1.0}]
        assert fitted.steps == [66]

    def test_a_setting_that_diverges_is_not_chosen(self) -> None:
        @dataclass(frozen=True)
        class Diverging(Counter):
            grid = ({"speed": torch.nan}, {"speed": 0.1})

        assert fit(Diverging, torch.zeros(1, 50)).settings == [{"speed": 0.1}]
        with pytest.raises(FloatingPointError, match="Counter diverged with all of its settings"):
            fit(Counter, torch.zeros(1, 50), settings={"speed": torch.nan})

    def test_a_cheaper_method_says_so(self) -> None:
        @dataclass(frozen=True)
        class Dear(Counter):
            steps_factor = 0.1

        assert fit(Dear, torch.full((1, 50), 99.0), settings={"speed": 1.0}).steps == [10]

    def test_progress_is_told_and_rises(self) -> None:
        told: list[tuple[int, int, float | None]] = []
        fit(Counter, torch.zeros(1, 50), on_progress=lambda *values: told.append(values))
        assert [done for done, _, _ in told[:100]] == list(range(1, 101))
        assert all(done <= total == 200 for done, total, _ in told)
        assert told[0][2] is not None  # the first checkpoint is the first of a hundred steps

    def test_settings_it_does_not_have(self) -> None:
        with pytest.raises(ValueError, match=r"Counter has no such settings: .*pace.*; it has: speed"):
            fit(Counter, torch.zeros(1, 50), settings={"pace": 1.0})

    def test_regression_only(self) -> None:
        @dataclass(frozen=True)
        class NoClasses(Counter):
            classifies = False

        with pytest.raises(ValueError, match="regression only"):
            fit_members(
                NoClasses,
                torch.zeros(1, 9, 1),
                torch.zeros(1, 9).long(),
                hidden_layer_sizes=(),
                activation="relu",
                n_classes=2,
            )


class TestInterruption:
    @pytest.fixture(autouse=True)
    def _fresh(self) -> None:
        Interrupted.steps = itertools.count(1)

    @pytest.mark.parametrize("at", [70, 130], ids=["while choosing", "while training on all rows"])
    def test_the_best_so_far_is_kept(self, at: int) -> None:
        Interrupted.at = at
        fitted = fit(Interrupted, torch.full((1, 50), 43.0), settings={"speed": 1.0})
        assert fitted.interrupted
        assert fitted.state["count"].tolist() == [43.0]

    def test_before_anything_was_scored(self) -> None:
        Interrupted.at = 1
        with pytest.raises(KeyboardInterrupt):
            fit(Interrupted, torch.zeros(1, 50))


class TestTraining:
    def test_every_member_sees_each_of_its_rows_once_an_epoch(self) -> None:
        rows = torch.arange(30).reshape(3, 10) * 7
        order = Batches(rows, 5, torch.Generator().manual_seed(0))
        epochs = [torch.cat([next(order), next(order)], 1) for _ in range(2)]
        for epoch in epochs:
            assert torch.equal(epoch.sort(1).values, rows)
        assert not torch.equal(epochs[0], epochs[1])
        assert not torch.equal(epochs[0][0], epochs[0][1] - 70)

    def test_few_rows_make_one_batch(self) -> None:
        assert next(Batches(torch.arange(6).reshape(2, 3), 100, torch.Generator())).shape == (2, 3)

    def test_members_side_by_side_are_members_alone(self) -> None:
        """With all rows in every batch, nothing is random but the start."""
        generator = torch.Generator().manual_seed(0)
        task = Task((2, 5, 1), "tanh", 3, 20, classification=False, dtype=torch.float64)
        x, y = torch.randn(60, 2, dtype=torch.float64), torch.randn(60, 1, dtype=torch.float64)
        rows = torch.arange(60).reshape(3, 20)
        rates = torch.tensor([0.01, 0.03, 0.1], dtype=torch.float64)
        start = MAP().start(task, generator)
        together = train(MAP(rates, rates), task, start, x, y, rows, 30, 20, generator)
        for k in range(3):
            one, rate = torch.tensor([k]), float(rates[k])
            alone = train(MAP(rate, rate), replace(task, members=1), taken(start, one), x, y, rows[one], 30, 20, generator)
            for name, value in alone.items():
                torch.testing.assert_close(taken(together, one)[name], value)

    def test_replaced(self) -> None:
        old, new = {"a": torch.zeros(3), "b": torch.zeros(3, 2, 2)}, {"a": torch.ones(3), "b": torch.ones(3, 2, 2)}
        mixed = replaced(torch.tensor([True, False, True]), new, old)
        assert mixed["a"].tolist() == [1, 0, 1]
        assert mixed["b"].sum((1, 2)).tolist() == [4, 0, 4]


class TestScores:
    def test_the_mixture_and_its_best_noise(self) -> None:
        """Against the mixture of SciPy's Gaussians, for all factors."""
        task = Task((1, 2), "relu", 2, 10, classification=False)
        z, y = torch.randn(5, 2, 10, 2), torch.randn(2, 10, 2)

        @dataclass(frozen=True)
        class Fixed(Counter):
            def outputs(self, *_: object) -> Tensor:
                return z

        state = {"noise_variance": torch.tensor([0.3, 20.0])}
        scores, factors = member_scores(Fixed(), task, state, torch.zeros(2, 10, 1), y, 5, torch.Generator())
        noise = state["noise_variance"][:, None, None]
        by_factor = torch.stack(
            [
                torch.as_tensor(norm.logpdf(y, z, (f * noise).sqrt())).sum(-1).exp().mean(0).log().mean(-1)
                for f in NOISE_FACTORS
            ]
        )
        torch.testing.assert_close(scores, by_factor.max(0).values.float())
        torch.testing.assert_close(factors, torch.tensor(NOISE_FACTORS)[by_factor.argmax(0)])


class TestBudget:
    def test_checkpoints_are_spread_geometrically(self) -> None:
        steps = Budget(n_checkpoints=5).checkpoints(10_000)
        assert steps == [100, 316, 1000, 3162, 10_000]
        assert Budget().checkpoints(1) == [1]

    @pytest.mark.parametrize(
        ("change", "message"),
        [({"steps": 0}, "steps must be at least 1"), ({"validation_fraction": 1.0}, "strictly between 0 and 1")],
    )
    def test_impossible_budgets(self, change: dict[str, float], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Budget(**change)  # type: ignore[arg-type]
