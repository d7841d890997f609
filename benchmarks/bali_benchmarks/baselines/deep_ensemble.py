"""Deep ensembles: a few networks from different starts, their predictions mixed.

Lakshminarayanan, Pritzel and Blundell (2017), with the noise that all methods here have (the same for all rows) and without
their adversarial rows. The networks are trained as in `map.py`, as so many more members; each entry of the state is
(K, N_NETWORKS, ...).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from bali_benchmarks.baselines.map import MAP
from bali_benchmarks.baselines.method import State, Task

N_NETWORKS = 5


@dataclass(frozen=True)
class DeepEnsemble(MAP):
    title: ClassVar[str] = "Deep ensemble"
    citation: ClassVar[str] = "Lakshminarayanan, Pritzel and Blundell, Deep ensembles, NeurIPS 2017"
    steps_factor: ClassVar[float] = 0.5  # of five networks each

    def start(self, task: Task, generator: torch.Generator) -> State:
        return _grouped(self._networks.start(_networks_task(task), generator))

    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        x, y = x.repeat_interleave(N_NETWORKS, 0), y.repeat_interleave(N_NETWORKS, 0)
        return _grouped(self._networks.step(_networks_task(task), _flat(state), x, y, generator))

    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        rows = x.repeat_interleave(N_NETWORKS, 0)
        z = self._networks.outputs(_networks_task(task), _flat(state), rows, 1, generator)[0]
        return z.reshape(-1, N_NETWORKS, *z.shape[1:]).movedim(1, 0)

    def noise_variance(self, state: State) -> Tensor:
        return state["noise_variance"].mean(1)

    @property
    def _networks(self) -> MAP:
        """The same settings for each network of a member."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        spread = {n: v.repeat_interleave(N_NETWORKS) if isinstance(v, Tensor) and v.dim() else v for n, v in own.items()}
        return MAP(**spread)


def _networks_task(task: Task) -> Task:
    return replace(task, members=task.members * N_NETWORKS)


def _grouped(state: State) -> State:
    return {name: value.reshape(-1, N_NETWORKS, *value.shape[1:]) for name, value in state.items()}


def _flat(state: State) -> State:
    return {name: value.flatten(0, 1) for name, value in state.items()}
