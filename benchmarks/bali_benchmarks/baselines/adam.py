"""Adam (Kingma and Ba, 2015) for members with their own learning rates, as a function of its state.

The moving average of the parameters, which its section 7.2 recommends, is what predictions are made with: it does not have
the jitter of a constant learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bali_benchmarks.baselines.method import Setting, State
from bali_benchmarks.baselines.perceptrons import packed, per_member, unpacked

FIRST_DECAY, SECOND_DECAY, EPSILON = 0.9, 0.999, 1e-8
#: Share of the newest in the average in the end; before, the average is over about the last tenth of the steps.
AVERAGE_RATE = 0.002


def adam_start(parameters: Sequence[Tensor]) -> State:
    """Moments of gradients that have not been seen yet; entries of the method's state."""
    zeros = [torch.zeros_like(p) for p in parameters]
    first = parameters[0]
    moments = packed(zeros, "first") | packed(zeros, "second") | {"count": first.new_zeros(len(first))}
    return moments | packed(parameters, "average")


def averaged_weights(state: State) -> list[Tensor]:
    """The moving average of the parameters."""
    return unpacked(state, "average")


@torch.no_grad()
def adam_step(
    state: State, parameters: Sequence[Tensor], gradients: Sequence[Tensor], learning_rate: Setting
) -> tuple[list[Tensor], State]:
    """The parameters after one step against the gradients; and the new moments and average."""
    count = state["count"] + 1.0
    # The bias corrections of both moments, which are (K,), taken out of the quotient of large tensors.
    correction = (1.0 - SECOND_DECAY**count).sqrt()
    rate, epsilon = learning_rate * correction / (1.0 - FIRST_DECAY**count), EPSILON * correction
    share = (10.0 / (count + 9.0)).clamp_min(AVERAGE_RATE)
    moved, first, second, average = [], [], [], []
    for p, g, m, v in zip(parameters, gradients, unpacked(state, "first"), unpacked(state, "second"), strict=True):
        first.append(m.lerp(g, 1.0 - FIRST_DECAY))
        second.append((v * SECOND_DECAY).addcmul_(g, g, value=1.0 - SECOND_DECAY))
        moved.append(p - per_member(rate, p) * first[-1] / (second[-1].sqrt() + per_member(epsilon, p)))
    for p, mean in zip(moved, averaged_weights(state), strict=True):
        average.append(mean.lerp(p, per_member(share, p)))
    return moved, packed(first, "first") | packed(second, "second") | packed(average, "average") | {"count": count}
