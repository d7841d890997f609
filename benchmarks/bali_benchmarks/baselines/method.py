"""What a method is: how it starts, what it does with a mini-batch, and what its network says at new rows.

Everything has a leading dimension of K members: K networks with their own rows, seeds and settings, trained as one batch of
matrices. A weight matrix is (K, D_in + 1, D_out) with the bias as its last row, as in `bali.conjugate.mniw`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

#: All that a method keeps between steps: tensors (K, ...), so that members can be taken out, kept and saved alike.
State = dict[str, Tensor]
#: A setting of a method: one number, or one for each member.
Setting = float | Tensor
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Task:
    """The networks and the data they are fitted to. Inputs and regression targets have unit scale."""

    layer_sizes: tuple[int, ...]
    activation: str
    members: int
    n_data: int
    classification: bool
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU


class Method(ABC):
    """A frozen dataclass whose fields are the method's settings (`Setting`), one file for each method."""

    title: ClassVar[str]
    citation: ClassVar[str]
    #: The settings among which validation rows choose: the same number of them for every method.
    grid: ClassVar[tuple[dict[str, Any], ...]]
    #: Whether the method is made for classes too, or for regression alone.
    classifies: ClassVar[bool] = True
    #: Of the budget's steps, the share that this method takes: less than 1 where a step does the work of several.
    steps_factor: ClassVar[float] = 1.0

    @abstractmethod
    def start(self, task: Task, generator: torch.Generator) -> State:
        """Before the first step."""

    @abstractmethod
    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        """After one more mini-batch: x (K, B, D_in), y (K, B, D_out), or classes (K, B). `state` is not changed."""

    def finish(self, task: Task, state: State, x: Tensor, y: Tensor) -> State:
        """After the last step, with all the rows that were trained on; for methods that add a posterior at the end."""
        return state

    @abstractmethod
    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Outputs of the networks at x (K, n, D_in) under draws from the posterior: (S, K, n, D_out).

        S is `n_samples`, or the number of distinct networks where the posterior is a few of them. A draw is of the weights,
        the same for all rows, and does not depend on how many rows there are.
        """

    def noise_variance(self, state: State) -> Tensor:
        """Variance of the targets about the outputs in a regression, (K,)."""
        return state["noise_variance"]
