"""A step that several processes take together, each with rows of its own, and one of several batches.

Statistics are sums over rows, so that several batches give the posterior of one large batch. Of several processes two
messages add them up: a short one with numbers of rows and log-likelihoods, in which a process also says that it failed, and
a long one with the moments of all layers. Then every layer is factored by one process, its owner, and the results go to
all. Drawing weights uses the generator alike on every process, whoever solves with the draws, so that all of them, and a
single process, draw the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from bali.conjugate.moments import Moments
from bali.conjugate.sampling import standard_normal
from bali.conjugate.symmetric import Diagonal, strips, whole
from bali.inference.checkpoints import layer_from_tensors
from bali.inference.distributed import Group
from bali.inference.layer_update import (
    Stride,
    condition_layer,
    draw_weights,
    forget_factors,
    gradient_average,
    moved,
    precision_average,
)
from bali.inference.passes import BatchStatistics, Totals
from bali.inference.settings import Settings, Setup
from bali.inference.state import LayerState
from bali.inference.statistics import LayerStatistics

# --- several batches --------------------------------------------------------------------------------------------------


def known(sums: Mapping[str, LayerStatistics]) -> dict[str, Callable[[], LayerStatistics]]:
    """Statistics that are sums already, as `BatchStatistics` wants them."""
    return {name: lambda own=own: own for name, own in sums.items()}  # type: ignore[misc]


def summed(batch: BatchStatistics) -> BatchStatistics:
    """The same with sums over its rows, which can then be freed."""
    return replace(batch, layers=known({name: batch.take(name) for name in list(batch.layers)}))


def together(earlier: BatchStatistics, last: BatchStatistics) -> BatchStatistics:
    """Both batches, seen at the same weights one after the other. The rows of the last one may still be kept."""

    def both(name: str) -> Callable[[], LayerStatistics]:
        return lambda: earlier.take(name) + last.take(name)

    of_others = [_sum(a, b) for a, b in zip(earlier.of_others, last.of_others, strict=True)]
    layers, totals = {name: both(name) for name in last.layers}, earlier.totals + last.totals
    return replace(last, state=earlier.state, totals=totals, of_others=of_others, layers=layers)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second


# --- several processes ------------------------------------------------------------------------------------------------


# --- sums over processes ----------------------------------------------------------------------------------------------


def report_failure(setup: Setup, group: Group) -> None:
    """Takes the place of `sum_over` where this process has nothing to add, so that the others do not wait for it."""
    k, n_layers = setup.network.members or 1, len(setup.network.layers)
    numbers = [torch.zeros(3 + n_layers, k), torch.zeros(n_layers + len(setup.others.parameters))]
    failed = torch.ones(1, dtype=torch.float64, device=group.device)
    group.sum([failed, *(t.to(failed) for t in numbers)])


def sum_over(setup: Setup, group: Group, batch: BatchStatistics) -> BatchStatistics:
    """Totals, every layer's statistics and the gradients of other parameters, of the rows of all processes."""
    layers = batch.state.layers
    own = {name: batch.take(name) for name in layers}
    totals, wide = batch.totals, next(iter(layers.values())).prior.mean.dtype
    lead = totals.value.shape  # (K,) with members
    numbers = [totals.value, totals.weight, totals.squares, *(s.moments.n for s in own.values())]
    by_member = [torch.as_tensor(v, dtype=torch.float64, device=group.device).expand(lead).reshape(-1) for v in numbers]
    needs_wide = [s.moments.xy.dtype == wide for s in own.values()]
    has_gradient = [gradient is not None for gradient in batch.of_others]
    flags = torch.tensor(needs_wide + has_gradient, dtype=torch.float64, device=group.device)
    failed = flags.new_zeros(1)
    failed, table, flags = group.sum([failed, torch.stack(by_member), flags])
    group.check_failures(failed.item())

    value, weight, squares, *rows = (row.reshape(lead) for row in table)
    total = Totals(value.to(totals.value.dtype), weight, squares)
    narrow = [s.moments.to(wide) if flag else s.moments for s, flag in zip(own.values(), flags.tolist(), strict=False)]
    kept = [i for i, flag in enumerate(flags[len(own) :].tolist()) if flag]
    parameters = list(setup.others.parameters.values())
    gradients = [g if g is not None else torch.zeros_like(p) for g, p in zip(batch.of_others, parameters, strict=True)]
    found = iter(group.sum([*(t for m in narrow for t in _message(m)), *(gradients[i] for i in kept)]))
    statistics = {
        name: replace(s, moments=_summed(m, found, n)) for (name, s), m, n in zip(own.items(), narrow, rows, strict=True)
    }
    of_others: list[Tensor | None] = [next(found) if i in kept else None for i in range(len(parameters))]
    return replace(batch, totals=total, of_others=of_others, layers=known(statistics))


def _message(moments: Moments) -> list[Tensor]:
    """The numbers of a layer's moments; of the symmetric ones, little more than a half."""
    return [moments.xy, *([] if moments.xx is None else moments.xx.pack()), *strips(moments.yy)]


def _summed(like: Moments, parts: Iterator[Tensor], n: Tensor) -> Moments:
    xy = next(parts)
    xx = None if like.xx is None else like.xx.unpack(parts)
    yy = whole(like.yy, parts)
    first = n.reshape(-1)[0]  # members with as many rows each share what is alike
    return Moments(xx, xy, yy, first.item() if bool((n == first).all()) else n.to(xy.dtype))


# --- one owner for every layer ----------------------------------------------------------------------------------------


def owners(layers: Mapping[str, LayerState], processes: int) -> dict[str, int]:
    """Which process factors which layer: the costliest first, each to the one that has least to do so far."""
    load = [0.0] * processes
    found = {}
    for name in sorted(layers, key=lambda name: -update_cost(layers[name])):
        found[name] = min(range(processes), key=load.__getitem__)
        load[found[name]] += update_cost(layers[name])
    return {name: found[name] for name in layers}


def update_cost(layer: LayerState) -> float:
    """Operations of a layer's factorisations and solves."""
    d, e = layer.weights.shape[-2:]
    if isinstance(layer.precision, Diagonal):
        return e**3 / 3 + 2 * d * e * e
    return layer.weights.numel() / (d * e) * ((d**3 + e**3) / 3 + 3 * d * d * e + 2 * d * e * e)


def update_together(
    setup: Setup,
    group: Group,
    batch: BatchStatistics,
    stride: Stride,
) -> dict[str, LayerState]:
    """Lines 2 to 6 of all layers, each computed by its owner."""
    layers, settings = batch.state.layers, setup.settings
    statistics = {name: batch.take(name) for name in layers}
    owner = owners(layers, group.size)
    updated, error = dict[str, LayerState](), None
    for layer in layers.values():
        forget_factors(layer)
    try:
        for name, layer in layers.items():
            if owner[name] == group.rank:
                share = setup.network.layers[name].step_share
                updated[name] = condition_layer(layer, statistics[name], settings, stride, share)
        for name, layer in layers.items():
            if name in updated:
                weights = draw_weights(updated[name], settings, batch.generator)
                updated[name] = replace(updated[name], weights=weights)
            else:
                _draw_nothing(layer, settings, batch.generator)
    except Exception as found:
        error = found
    messages = [
        {name: _result(updated.get(name), layers[name]) for name in layers if owner[name] == r} for r in range(group.size)
    ]
    failed = torch.full((1,), float(error is not None), dtype=torch.float64, device=group.device)
    received = group.exchange([[failed, *(t for result in of_one.values() for t in result)] for of_one in messages])
    if error is not None:
        raise error
    group.check_failures(sum(tensors[0].item() for tensors in received))
    for of_one, tensors in zip(messages, received, strict=True):
        parts = iter(tensors[1:])
        for name, result in of_one.items():
            given = iter([next(parts) for _ in result])
            if name not in updated:
                updated[name] = _followed(layers[name], statistics[name], given, setup, stride)
    return {name: updated[name] for name in layers}


def _draw_nothing(state: LayerState, settings: Settings, generator: torch.Generator) -> None:
    """Leave the generator as `draw_weights` would."""
    if settings.reparam == "weight":
        standard_normal(state.weights.shape, state.weights, generator)


def _result(updated: LayerState | None, layer: LayerState) -> list[Tensor]:
    """What others cannot know of a layer after its owner's step; before it, tensors of the same shapes and types."""
    if updated is None:
        mean = layer.prior.mean.new_empty(()).expand(layer.weights.shape)
        scale = mean.new_empty(()).expand(*mean.shape[:-2], mean.shape[-1], mean.shape[-1])
        return [layer.weights, mean, *strips(scale)]
    assert updated.posterior is not None
    return [updated.weights, updated.posterior.mean, *strips(updated.posterior.scale)]


def _followed(
    layer: LayerState, statistics: LayerStatistics, given: Iterator[Tensor], setup: Setup, stride: Stride
) -> LayerState:
    """The layer after its owner's step: averages are computed here, too, and the rest is given."""
    settings = setup.settings
    gradient = gradient_average(layer, statistics, stride.rate)
    precision = precision_average(layer, statistics.rescale_(settings.effective_size), stride.rate)
    weights, mean = next(given), next(given)
    like = mean.new_empty(()).expand(*mean.shape[:-2], mean.shape[-1], mean.shape[-1])
    tensors = {"weights": weights, "mean": mean, "scale": whole(like, given)}
    if gradient is not None:
        tensors["mean_squared_gradient"] = gradient
    velocity = moved(layer, mean) if stride.momentum else None
    if velocity is not None:
        tensors["velocity"] = velocity
    is_fixed = layer.fixed_precision is not None
    return layer_from_tensors(layer.prior, tensors, precision, settings.effective_size, is_fixed=is_fixed)
