"""A step that several processes take together, each with rows of its own.

Statistics are sums over rows. Two messages add them up: a short one with numbers of rows and log-likelihoods, in which a
process also says that it failed, and a long one with the moments of all layers. Then every layer is factored by one process,
its owner, and the results go to all. Drawing weights uses the generator alike on every process, whoever solves with the
draws, so that all of them, and a single process, draw the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bali.batch_pass import Accumulated, Totals, draw_weights
from bali.distributed import Group
from bali.layer_update import (
    LayerState,
    LayerStatistics,
    condition_layer,
    forget_factors,
    gradient_average,
    precision_average,
    velocity,
)
from bali.moments import Moments
from bali.sampling import standard_normal
from bali.triangles import strips, whole

if TYPE_CHECKING:
    from bali.inference import LayerwiseInference


# --- sums over processes ----------------------------------------------------------------------------------------------


def report_failure(inference: LayerwiseInference, group: Group) -> None:
    """Takes the place of `sum_over` where this process has nothing to add, so that the others do not wait for it."""
    k = inference.network.members or 1
    numbers = [
        torch.zeros(3 + len(inference.states), k),
        torch.zeros(len(inference.states) + len(inference.others.parameters)),
    ]
    failed = torch.ones(1, dtype=torch.float64, device=group.device)
    group.sum([failed, *(t.to(failed) for t in numbers)])


def sum_over(
    inference: LayerwiseInference, group: Group, accumulated: Accumulated
) -> tuple[dict[str, LayerStatistics], Totals, list[Tensor | None]]:
    """Every layer's statistics, the totals and the gradients of other parameters, of the rows of all processes."""
    own = {name: accumulated.take(name) for name in accumulated.states}
    totals, wide = accumulated.totals, inference.settings.algebra_dtype
    lead = totals.value.shape  # (K,) with members
    numbers = [totals.value, totals.weight, totals.squares, *(s.moments.n for s in own.values())]
    by_member = [torch.as_tensor(v, dtype=torch.float64, device=group.device).expand(lead).reshape(-1) for v in numbers]
    needs_wide = [s.moments.xy.dtype == wide for s in own.values()]
    has_gradient = [gradient is not None for gradient in accumulated.of_others]
    flags = torch.tensor(needs_wide + has_gradient, dtype=torch.float64, device=group.device)
    failed = flags.new_zeros(1)
    failed, table, flags = group.sum([failed, torch.stack(by_member), flags])
    group.check_failures(failed.item())

    value, weight, squares, *rows = (row.reshape(lead) for row in table)
    total = Totals(value.to(totals.value.dtype), weight, squares)
    total.check()
    narrow = [s.moments.to(wide) if flag else s.moments for s, flag in zip(own.values(), flags.tolist(), strict=False)]
    kept = [i for i, flag in enumerate(flags[len(own) :].tolist()) if flag]
    parameters = list(inference.others.parameters.values())
    gradients = [g if g is not None else torch.zeros_like(p) for g, p in zip(accumulated.of_others, parameters, strict=True)]
    ready = {name: replace(s, moments=m) for (name, s), m in zip(own.items(), narrow, strict=True)}
    found = iter(group.sum([*(t for s in ready.values() for t in _message(s)), *(gradients[i] for i in kept)]))
    statistics = {name: replace(s, moments=_summed(s, found, n)) for (name, s), n in zip(ready.items(), rows, strict=True)}
    of_others: list[Tensor | None] = [next(found) if i in kept else None for i in range(len(parameters))]
    return statistics, total, of_others


def _is_square(xx: Tensor) -> bool:
    """XᵀX is a matrix, not a column of its diagonal, nor the 0 that stands for none."""
    return xx.dim() > 1 and xx.shape[-1] == xx.shape[-2]


def _message(statistics: LayerStatistics) -> list[Tensor]:
    """The numbers of a layer's moments; of the symmetric ones, little more than a half."""
    moments = statistics.moments
    xx = strips(moments.xx) if _is_square(moments.xx) else [moments.xx]
    return [moments.xy, *xx, *([moments.yy] if statistics.leaves_noise else strips(moments.yy))]


def _summed(like: LayerStatistics, parts: Iterator[Tensor], n: Tensor) -> Moments:
    moments = like.moments
    xy = next(parts)
    xx = whole(moments.xx, parts) if _is_square(moments.xx) else next(parts)
    yy = next(parts) if like.leaves_noise else whole(moments.yy, parts)
    first = n.reshape(-1)[0]  # members with as many rows each share what is alike
    return Moments(xx, xy, yy, first.item() if bool((n == first).all()) else n.to(xy.dtype))


# --- one owner for every layer ----------------------------------------------------------------------------------------


def owners(states: Mapping[str, LayerState], processes: int) -> dict[str, int]:
    """Which process factors which layer: the costliest first, each to the one that has least to do so far."""
    load = [0.0] * processes
    found = {}
    for name in sorted(states, key=lambda name: -update_cost(states[name])):
        found[name] = min(range(processes), key=load.__getitem__)
        load[found[name]] += update_cost(states[name])
    return {name: found[name] for name in states}


def update_cost(state: LayerState) -> float:
    """Operations of a layer's factorisations and solves."""
    d, e = state.prior.n_inputs, state.prior.n_outputs
    if state.layer.has_tokens:  # whose precision is diagonal
        return e**3 / 3 + 2 * d * e * e
    return state.weights.numel() / (d * e) * ((d**3 + e**3) / 3 + 3 * d * d * e + 2 * d * e * e)


def update_together(
    inference: LayerwiseInference,
    group: Group,
    states: Mapping[str, LayerState],
    statistics: Mapping[str, LayerStatistics],
    rate: float,
) -> dict[str, LayerState]:
    """Lines 2 to 6 of all layers, each computed by its owner."""
    owner = owners(states, group.size)
    own = {name: state for name, state in states.items() if owner[name] == group.rank}
    updated, error, settings = dict[str, LayerState](), None, inference.settings.at(inference.steps + 1)
    for name, state in states.items():
        forget_factors(state, leaves_noise=statistics[name].leaves_noise)
    try:
        for name, state in own.items():
            updated[name] = condition_layer(state, statistics[name], settings, rate)
        for name, state in states.items():
            if name in own:
                updated[name].weights = draw_weights(inference, updated[name])
            else:
                _draw_nothing(inference, state)
    except Exception as found:
        error = found
    results = [
        {
            name: _result(updated.get(name), states[name], statistics[name], inference, rate)
            for name in states
            if owner[name] == r
        }
        for r in range(group.size)
    ]
    failed = torch.full((1,), float(error is not None), dtype=torch.float64, device=group.device)
    received = group.exchange([[failed, *(t for result in of_one.values() for t in result)] for of_one in results])
    if error is not None:
        raise error
    group.check_failures(sum(tensors[0].item() for tensors in received))
    for of_one, tensors in zip(results, received, strict=True):
        parts = iter(tensors[1:])
        for name, result in of_one.items():
            given = [next(parts) for _ in result]
            if name not in own:
                updated[name] = _followed(states[name], statistics[name], given, inference, rate)
    return {name: updated[name] for name in states}


def _draw_nothing(inference: LayerwiseInference, state: LayerState) -> None:
    """Leave the generator as `draw_weights` would."""
    if inference.settings.reparam == "weight":
        state.prior.noise_root(inference.settings.noise, inference.generator)
        standard_normal(state.weights.shape, state.weights, inference.generator)


def _result(
    updated: LayerState | None,
    state: LayerState,
    statistics: LayerStatistics,
    inference: LayerwiseInference,
    rate: float,
) -> list[Tensor]:
    """What others cannot know of a layer after its owner's step; before it, tensors of the same shapes and types."""
    wide, lead = inference.settings.algebra_dtype, state.weights.shape[:-2]
    d_x, d_y = state.weights.shape[-2:]

    def like(*shape: int) -> Tensor:
        return state.weights.new_empty((), dtype=wide).expand(shape)

    local, natural = inference.settings.reparam == "local", inference.settings.update == "natural"
    if updated is None:
        result = [state.weights, like(*lead, d_x, d_y)]
        result += [] if statistics.leaves_noise else strips(like(*lead, d_y, d_y))
        result += [like(*lead, d_x, d_y), like(*lead, d_y, d_y)] if natural else []
        return result + ([like(*_precision_shape(state, statistics.moments.xx, rate))] if local else [])
    posterior, targets = updated.posterior, updated.targets
    assert posterior is not None
    result = [updated.weights, posterior.mean]
    result += [] if statistics.leaves_noise else strips(posterior.scale)
    result += [] if targets is None else [targets.xy, targets.yy]
    return result + ([posterior.precision_factor] if local else [])


def _precision_shape(state: LayerState, xx: Tensor, rate: float) -> tuple[int, ...]:
    """Of what `precision_average` will give: members may share one, and may have in the step before."""
    old = None if state.precision is None or (rate == 1.0 and not state.xx_is_exact) else state.precision.shape
    if state.xx_is_exact and old is not None:
        return old
    return np.broadcast_shapes(state.prior.precision.shape, xx.shape, old or ())


def _followed(
    state: LayerState, statistics: LayerStatistics, given: list[Tensor], inference: LayerwiseInference, rate: float
) -> LayerState:
    """The layer after its owner's step: averages are computed here, too, and the rest is given."""
    settings, parts = inference.settings, iter(given)
    gg = gradient_average(state, statistics, settings, rate)
    precision = precision_average(state, statistics.rescale_(settings.effective_size), rate)
    weights, mean = next(parts), next(parts)
    known = state.posterior if state.xx_is_exact and state.posterior is not None else None
    if known is None:
        known = (state.posterior or state.prior).with_precision(precision)
    if statistics.leaves_noise:
        scale, dof = known.scale, known.dof
    else:
        like = mean.new_empty(()).expand(*mean.shape[:-2], mean.shape[-1], mean.shape[-1])
        scale, dof = whole(like, parts), state.prior.dof + settings.effective_size
    posterior = known.with_same_precision(mean, scale, dof)  # whose factors are computed if they are asked for
    targets = None
    if settings.update == "natural":
        targets = Moments(mean.new_zeros(()), next(parts), next(parts), settings.effective_size)
    if settings.reparam == "local":
        posterior.adopt_precision_factor(next(parts))
    moved = velocity(state, mean) if settings.momentum else None
    return LayerState(state.layer, state.prior, weights, posterior, precision, gg, targets, state.xx_is_exact, moved)
