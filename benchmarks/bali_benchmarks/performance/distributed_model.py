"""What a step of several processes costs: operations and bytes, and how long they take on a machine of known speed.

D inputs (the bias included) and E outputs of a layer, B rows of all processes together, W processes:

| part           | of one process                                                                                     |
|----------------|----------------------------------------------------------------------------------------------------|
| statistics     | 1/W of forward and backward pass, XᵀX, XᵀG and GᵀG                                                    |
| sums           | XᵀG and the strips of XᵀX and GᵀG, in the type of the rows; a ring sends and receives 2 (W−1)/W of them |
| factorisation  | of the layers it owns: Cholesky factors of R⁻¹ and U, solves for M, U and the weight sample             |
| results        | M in float64, the sample in the type of the rows, the strips of U in float64, of all layers           |

Every process needs a row, and factorisations no longer shrink where there are more processes than layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bali.conjugate.symmetric import strips
from bali_benchmarks.performance.arithmetic import step_flops

_ROW, _ALGEBRA = 4, 8  # bytes of a number


@dataclass(frozen=True)
class Machine:
    """Speeds of one process: operations a second of the two parts, and bytes a second to and from the others."""

    statistics: float
    factorisation: float
    bytes: float
    latency: float  # seconds that a message takes at least


@dataclass(frozen=True)
class Cost:
    """Of one step, for one process."""

    statistics: float  # operations
    factorisation: float
    summed: float  # bytes of the message
    results: float

    def seconds(self, machine: Machine, processes: int) -> dict[str, float]:
        """By part. Every process sends and receives the sums in a ring; results arrive from their owners."""
        rounds = 2 * (processes - 1)
        messages = 0.0
        if processes > 1:
            sent = self.summed * rounds / processes + self.results
            messages = sent / machine.bytes + 3 * rounds * machine.latency  # two sums, and the results
        return {
            "statistics": self.statistics / machine.statistics,
            "messages": messages,
            "factorisation": self.factorisation / machine.factorisation,
        }


def _entries(d: int) -> int:
    """Numbers that stand for a symmetric matrix in a message."""
    return sum(strip.numel() for strip in strips(torch.empty(d, d, device="meta")))


def cost(sizes: Sequence[int], rows: int, processes: int) -> Cost:
    """Of a perceptron whose outputs are classes."""
    layers = [(n_in + 1, n_out) for n_in, n_out in itertools.pairwise(sizes)]
    whole = step_flops(sizes, rows)
    shared = sum(whole[part] for part in ("forward", "backward", "moments")) / processes
    own = [0.0] * processes
    for load in sorted((_update_flops(d, e) for d, e in layers), reverse=True):
        own[own.index(min(own))] += load
    summed = _ROW * sum(d * e + _entries(d) + _entries(e) for d, e in layers)
    results = sum((_ROW + _ALGEBRA) * d * e + _ALGEBRA * _entries(e) for d, e in layers)
    return Cost(shared, max(own), summed, results)


def _update_flops(d: int, e: int) -> float:
    one = step_flops((d - 1, e), 0)
    return one["factors"] + one["solves"]
