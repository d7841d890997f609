"""The one training loop of all methods: shuffled mini-batches for K members side by side, and members kept at their best.

Rows stand once in one pool, x (N, D_in) and y (N, ...); every member has its own list of row numbers in it, so that many
members can share a data set without copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from bali_benchmarks.baselines.method import Method, State, Task

#: Told after each step how many are done.
OnStep = Callable[[int], None]
#: Told at each checkpoint the number of steps done and the state.
OnCheckpoint = Callable[[int, State], None]


class Batches:
    """Row numbers (K, B) without end: each member's rows (K, n) in epochs of its own random order.

    All batches have the same size; the rows left over at the end of an epoch wait for the next one.
    """

    def __init__(self, rows: Tensor, batch_size: int, generator: torch.Generator) -> None:
        self.rows, self.size, self.generator = rows, min(batch_size, rows.shape[1]), generator
        self.order, self.next_row = rows[:, :0], 0  # of this epoch, (K, n); none before the first

    def __iter__(self) -> Iterator[Tensor]:
        return self

    def __next__(self) -> Tensor:
        members, n = self.rows.shape
        if self.next_row + self.size > self.order.shape[1]:
            chance = torch.rand(members, n, generator=self.generator, device=self.rows.device)
            self.order, self.next_row = self.rows.gather(1, chance.argsort(1)), 0
        self.next_row += self.size
        return self.order[:, self.next_row - self.size : self.next_row]


def train(
    method: Method,
    task: Task,
    state: State,
    x: Tensor,
    y: Tensor,
    rows: Tensor,
    steps: int,
    batch_size: int,
    generator: torch.Generator,
    *,
    checkpoints: Sequence[int] = (),
    on_checkpoint: OnCheckpoint | None = None,
    on_step: OnStep | None = None,
) -> State:
    """The state after so many more steps on the rows (K, n) of the pool x, y."""
    marks = frozenset(checkpoints)
    for step, batch in zip(range(1, steps + 1), Batches(rows, batch_size, generator), strict=False):
        state = method.step(task, state, x[batch], y[batch], generator)
        if on_checkpoint is not None and step in marks:
            on_checkpoint(step, state)
        if on_step is not None:
            on_step(step)
    return state


def replaced(mask: Tensor, new: State, old: State) -> State:
    """The members of `new` where the mask (K,) is set, of `old` elsewhere."""
    return {name: torch.where(mask.reshape(-1, *[1] * (value.dim() - 1)), value, old[name]) for name, value in new.items()}


def taken(state: State, members: Tensor) -> State:
    """Some of the members, by number."""
    return {name: value[members] for name, value in state.items()}
