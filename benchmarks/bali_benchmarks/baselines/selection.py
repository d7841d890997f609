"""The protocol by which every method is fitted, the same for all: its settings and steps are chosen on held-out rows.

A fifth of each data set's training rows is held out. One network (or whatever the method trains) for each of the method's
settings is trained on the rest, and scored at checkpoints that are spread geometrically over the steps. The best setting
and number of steps of each data set are taken; a regression's noise variance is corrected by the factor that makes the
held-out rows most likely. Then the method is trained once more with that setting, for that number of steps, on all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace

import torch
from torch import Tensor

from bali_benchmarks.baselines.method import Method, State, Task
from bali_benchmarks.baselines.scoring import member_scores
from bali_benchmarks.baselines.training import replaced, taken, train

#: Told how many of how many steps are done, and the best validation score so far, if there is one yet.
OnProgress = Callable[[int, int, float | None], None]


@dataclass(frozen=True)
class Budget:
    """What every method may spend on a data set: 10,000 steps of 32 rows, for each of six settings and for the one chosen.

    Methods whose steps do the work of several take a share of the steps, their `steps_factor`.
    """

    steps: int = 10_000
    batch_size: int = 32
    n_settings: int = 6
    n_checkpoints: int = 12
    validation_fraction: float = 0.2
    n_samples: int = 32  # posterior draws for a validation score

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "n_settings", "n_checkpoints", "n_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 < self.validation_fraction < 1.0:
            raise ValueError(f"validation_fraction must lie strictly between 0 and 1, got {self.validation_fraction}")

    def checkpoints(self, steps: int) -> list[int]:
        """From a hundredth of the steps to all of them, each a constant multiple of the last."""
        shares = (100.0 ** (-k / max(self.n_checkpoints - 1, 1)) for k in range(self.n_checkpoints))
        return sorted({max(1, round(steps * share)) for share in shares})


@dataclass(frozen=True)
class Fitted:
    """A method fitted to S data sets."""

    method: Method
    task: Task
    state: State
    settings: list[dict[str, float]]  # chosen for each data set
    steps: list[int]
    noise_factor: Tensor  # (S,)
    validation_scores: list[float]  # of the choice, in nats per row, targets at unit scale
    interrupted: bool = False

    def noise_variance(self) -> Tensor:
        """Of a regression's targets about the outputs, as corrected on held-out rows, (S,)."""
        return self.method.noise_variance(self.state) * self.noise_factor

    def outputs(self, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Of the networks at x (S, n, D_in): (n_samples, S, n, D_out)."""
        with torch.no_grad():
            return self.method.outputs(self.task, self.state, x, n_samples, generator)


def with_settings(kind: type[Method], settings: Sequence[Mapping[str, float]], like: Tensor) -> Method:
    """A method whose members have these settings, one after the other."""
    try:
        return kind(
            **{
                name: torch.tensor([float(s[name]) for s in settings], dtype=like.dtype, device=like.device)
                for name in settings[0]
            }
        )
    except TypeError as error:
        known = ", ".join(field.name for field in fields(kind)) if is_dataclass(kind) else ""
        raise ValueError(f"{kind.title} has no such settings: {dict(settings[0])}; it has: {known or 'none'}") from error


def fit_members(
    kind: type[Method],
    x: Tensor,
    y: Tensor,
    *,
    hidden_layer_sizes: Sequence[int],
    activation: str,
    n_classes: int | None = None,
    settings: Mapping[str, float] | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Fitted:
    """Fit a method to S data sets at once: x (S, n, D_in) and y (S, n, D_out), or class indices (S, n), at unit scale.

    With `settings`, only the number of steps and the noise factor are left to the held-out rows. Ctrl-C keeps the
    best networks of the first part, which have not seen the held-out rows.
    """
    budget = budget or Budget()
    if n_classes is not None and not kind.classifies:
        raise ValueError(f"{kind.title} is for regression only")
    n_sets, n, n_inputs = x.shape
    n_outputs = y.shape[-1] if n_classes is None else n_classes
    task = Task((n_inputs, *hidden_layer_sizes, n_outputs), activation, n_sets, n, n_classes is not None, x.dtype, x.device)
    pool = x.reshape(-1, n_inputs), y.reshape(-1, *y.shape[2:])
    search = _Search(kind, task, pool, settings, budget, seed, on_progress)
    chosen = search.run()
    if chosen.interrupted:
        return chosen
    try:
        return search.trained_on_all_rows(chosen)
    except KeyboardInterrupt:
        return replace(chosen, interrupted=True)


class _Search:
    """The networks of all settings of all data sets (data sets outer), each where it scored best so far."""

    def __init__(
        self,
        kind: type[Method],
        task: Task,
        pool: tuple[Tensor, Tensor],
        settings: Mapping[str, float] | None,
        budget: Budget,
        seed: int,
        on_progress: OnProgress | None,
    ) -> None:
        self.kind, self.task, self.budget, self.on_progress = kind, task, budget, on_progress
        self.x, self.y = pool
        self.grid = [dict(settings)] if settings is not None else [dict(s) for s in kind.grid[: budget.n_settings]]
        self.generator = torch.Generator(device=task.device).manual_seed(seed)
        self.scoring_seed = seed + 1
        self.steps = max(1, round(budget.steps * kind.steps_factor))
        self.n_sets, self.n = task.members, task.n_data
        order = torch.rand(self.n_sets, self.n, generator=self.generator, device=task.device).argsort(1)
        order += self.n * torch.arange(self.n_sets, device=task.device)[:, None]  # places in the pool
        n_held_out = min(max(1, round(budget.validation_fraction * self.n)), self.n - 1)
        self.held_out, self.used = order[:, :n_held_out], order[:, n_held_out:]
        self.rows = order
        self.best_score = torch.full((self.n_sets * len(self.grid),), -torch.inf, dtype=task.dtype, device=task.device)
        self.best_step = torch.zeros_like(self.best_score, dtype=torch.long)
        self.best_state: State | None = None
        self.method = with_settings(kind, self.grid * self.n_sets, self.best_score)
        self.part_task = replace(task, members=len(self.best_score), n_data=self.used.shape[1])

    def run(self) -> Fitted:
        """The best setting of each data set, trained on the rows that were not held out."""
        used = self.used.repeat_interleave(len(self.grid), 0)
        held_out = self.held_out.repeat_interleave(len(self.grid), 0)
        x_held_out, y_held_out = self.x[held_out], self.y[held_out]
        interrupted = False

        def look(step: int, state: State) -> None:
            scores, _ = self._scores(self.method, self.part_task, state, x_held_out, y_held_out)
            better = scores > self.best_score
            self.best_state = state if self.best_state is None else replaced(better, state, self.best_state)
            self.best_score = torch.where(better, scores, self.best_score)
            self.best_step = torch.where(better, step, self.best_step)

        state = self.method.start(self.part_task, self.generator)
        try:
            train(
                self.method, self.part_task, state, self.x, self.y, used, self.steps, self.budget.batch_size,
                self.generator, checkpoints=self.budget.checkpoints(self.steps), on_checkpoint=look,
                on_step=self._on_step(0),
            )  # fmt: skip
        except KeyboardInterrupt:
            if self.best_state is None:
                raise
            interrupted = True
        return replace(self._chosen(), interrupted=interrupted)

    def _chosen(self) -> Fitted:
        by_set = self.best_score.reshape(self.n_sets, -1)
        if bool((by_set.max(1).values == -torch.inf).any()):
            raise FloatingPointError(
                f"{self.kind.title} diverged with all of its settings ({self.grid}); give it smaller steps by `settings`"
            )
        setting = by_set.argmax(1)
        members = setting + len(self.grid) * torch.arange(self.n_sets, device=setting.device)
        assert self.best_state is not None
        settings = [self.grid[int(s)] for s in setting]
        method = with_settings(self.kind, settings, self.best_score)
        task = replace(self.part_task, members=self.n_sets)
        state = method.finish(task, taken(self.best_state, members), self.x[self.used], self.y[self.used])
        scores, factors = self._scores(method, task, state, self.x[self.held_out], self.y[self.held_out])
        steps = [int(s) for s in self.best_step[members]]
        return Fitted(method, task, state, settings, steps, factors, [float(s) for s in scores])

    def trained_on_all_rows(self, chosen: Fitted) -> Fitted:
        """The choice, trained once more, on all rows; each data set's networks for their own number of steps."""
        kept: State | None = None
        steps = torch.tensor(chosen.steps, device=self.task.device)

        def keep(step: int, state: State) -> None:
            nonlocal kept
            kept = state if kept is None else replaced(steps == step, state, kept)

        state = chosen.method.start(self.task, self.generator)
        train(
            chosen.method, self.task, state, self.x, self.y, self.rows, max(chosen.steps), self.budget.batch_size,
            self.generator, checkpoints=chosen.steps, on_checkpoint=keep, on_step=self._on_step(self.steps),
        )  # fmt: skip
        assert kept is not None
        rows = self.rows
        finished = chosen.method.finish(self.task, kept, self.x[rows], self.y[rows])
        return replace(chosen, task=self.task, state={name: value.contiguous() for name, value in finished.items()})

    def _scores(self, method: Method, task: Task, state: State, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """With the same random numbers every time, so that looking does not change the training."""
        generator = torch.Generator(device=task.device).manual_seed(self.scoring_seed)
        return member_scores(method, task, state, x, y, self.budget.n_samples, generator)

    def _on_step(self, before: int) -> Callable[[int], None] | None:
        report = self.on_progress
        if report is None:
            return None

        def on_step(step: int) -> None:
            best = float(self.best_score.max())
            report(before + step, 2 * self.steps, best if best > -torch.inf else None)

        return on_step
