"""The update of `joint.py` for a stack of perceptrons: K members of one shape, every tensor with a leading dimension of K.

Tables train many small networks at once. Their rows and weights are plain matrices, so that forward and backward pass are a
few products of batches. Passes are written out: a module, hooks and autograd would take longer than these.
`tests/inference/test_stack_pass.py` holds both passes against autograd, `tests/inference/test_stack_update.py` a step
against that of `joint.py`. Each member has its own weights of rows (zero where it holds a row out), its own number of rows N
and its own bound on the divergence of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bali.conjugate.averages import averaged_into
from bali.conjugate.moments import gram
from bali.conjugate.symmetric import Dense, Symmetric
from bali.inference.joint import Pace
from bali.layers.modules import Back, bent

# --- passes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forward:
    """A forward pass, and what the way back needs of it. Rows lie side by side, (K, D, n): products of a batch whose
    longest dimension is the last one are several times faster than others."""

    outputs: Tensor  # (K, n, D)
    columns: list[Tensor]  # inputs of each layer, (K, D + 1, n), the last of them ones
    back: list[Back]  # through each activation

    @property
    def inputs(self) -> list[Tensor]:
        """Of each layer, (K, n, D), without the ones."""
        return [h[:, :-1].mT for h in self.columns]


@dataclass(frozen=True)
class StackPass:
    """What a batch says about every layer."""

    columns: list[Tensor]  # of each layer, (K, D + 1, n)
    gradients: list[Tensor]  # at each layer's outputs, times the rows' shares, (K, P, n)
    share: Tensor  # (K, n), of each row in its member's weight of the batch
    total: Tensor  # (K,), that weight


def columns_of(x: Tensor) -> Tensor:
    """(..., D + 1, n) of rows x (..., n, D)."""
    return torch.cat([x.mT, x.new_ones(*x.shape[:-2], 1, x.shape[-2])], -2)


def forward(means: Sequence[Tensor], activation: nn.Module, x: Tensor) -> Forward:
    """With weights (K, D_x, D_y) of each layer, the bias in the last row; x is (n, D), or (K, n, D) for rows of the members'
    own."""
    return forward_columns(means, activation, columns_of(x))


def forward_columns(means: Sequence[Tensor], activation: nn.Module, x: Tensor) -> Forward:
    """Likewise, of columns (D + 1, n) or (K, D + 1, n)."""
    h = x.expand(len(means[0]), *x.shape[-2:])
    columns, back, ones = [h], [], h[:, -1:]
    for mean in means[:-1]:
        z, way = bent(activation, torch.bmm(mean.mT, h))
        h = torch.cat([z, ones], 1)
        columns.append(h)
        back.append(way)
    return Forward(torch.bmm(means[-1].mT, h).mT, columns, back)


def backward(means: Sequence[Tensor], passed: Forward, gradient: Tensor) -> list[Tensor]:
    """Gradients (K, P, n) at the outputs of every layer from the one at the last."""
    found = [gradient]
    for mean, back in zip(reversed(means[1:]), reversed(passed.back), strict=True):
        weights, g = mean[:, :-1], found[-1]  # of a single column, a plain product of all pairs is the faster one
        found.append(back(weights * g if g.shape[1] == 1 else torch.bmm(weights, g)))
    return found[::-1]


def cross(h: Tensor, g: Tensor) -> Tensor:
    """hgᵀ, (K, D, P), of two batches of columns; the narrower one stands first, which is up to four times faster."""
    return torch.bmm(g, h.mT).mT if g.shape[1] < h.shape[1] else torch.bmm(h, g.mT)


# --- the update -------------------------------------------------------------------------------------------------------


#: As in `joint.py`: units whose gradients vanish, how long a factor serves, how often Gram matrices are taken.
_LEAST_SHARE = 1e-4
_REFRESH, _FRESH_AT_FIRST, _SELDOM = 20, 5, 4
#: An average of squared gradients that is so many times smaller than a batch's is given up for it.
_JUMP = 4.0


@dataclass(frozen=True)
class StackLayer:
    """What is kept of one layer of all members between steps."""

    mean: Tensor  # M, (K, D_x, D_y), the bias in the last row
    prior_variance: float  # σ²
    label: str
    inputs: Symmetric | None = None  # A, (K, D_x, D_x)
    inputs_are_known: bool = False  # A is that of all rows, as of a layer that sees the data themselves
    gradients: Tensor | None = None  # S, (K, D_y, D_y)
    weakness: Tensor | None = None  # one over the root mean square of each unit's gradients, from S, (K, 1, D_y)
    sudden: Tensor | None = None  # tr(S) from which on a batch's gradients have jumped, (K,)
    steepness: Tensor | None = None  # tr(ΔᵀAΔS)/2 over tr(ΔᵀAΔ) of the last step that S was new at, (K,)
    drive: Tensor | None = None  # V
    damped: Dense | None = None  # A + δI
    inverse: Tensor | None = None  # of it
    damping: Tensor | None = None  # δ, (K, 1, 1)
    reach: Tensor | None = None  # δσ²

    def changed(self, **fields: object) -> StackLayer:
        """`dataclasses.replace` in a tenth of its time, which small networks' steps would feel."""
        new = object.__new__(StackLayer)
        vars(new).update(vars(self), **fields)
        return new


def with_known_inputs(layer: StackLayer, x: Tensor, weight: Tensor, pace: Pace) -> StackLayer:
    """A layer whose inputs are the rows x (n, D) themselves: A is that of all of them, and is factored once."""
    total = weight.sum(-1)
    gram = torch.zeros_like(layer.mean[:, :, :1] @ layer.mean[:, :, :1].mT)
    for start in range(0, len(x), 4096):
        rows = _with_ones(x[start : start + 4096])
        gram += torch.einsum("kn,ni,nj->kij", weight[:, start : start + 4096], rows, rows)
    inputs = Dense(gram / total[:, None, None], layer.label)
    return _factored(layer.changed(inputs=inputs, inputs_are_known=True), inputs, pace)


def take_in(layers: Sequence[StackLayer], seen: StackPass, step: int, pace: Pace) -> list[StackLayer]:
    """The averages after one more batch; `step` counts from 1. The first values are plain means of all so far."""
    layers = [
        _of_gradients(layer, layer.gradients) if layer.sudden is None and layer.gradients is not None else layer
        for layer in layers
    ]
    fresh = step <= _FRESH_AT_FIRST or step % _SELDOM == 0 or _have_jumped(layers[-1], seen)
    rate = max(pace.rate if step <= _FRESH_AT_FIRST else 1.0 - (1.0 - pace.rate) ** _SELDOM, 1.0 / step)
    root = seen.share.sqrt().unsqueeze(1) if fresh else seen.share
    drives = [cross(h, g) for h, g in zip(seen.columns, seen.gradients, strict=True)]
    if layers[0].drive is not None:
        torch._foreach_lerp_(drives, _each(layers, "drive"), 1.0 - max(1.0 - pace.momentum, 1.0 / step))
    found = []
    for layer, h, g, drive in zip(layers, seen.columns, seen.gradients, drives, strict=True):
        if not fresh:
            layer = layer.changed(drive=drive)
        else:
            layer = _with_gradients(layer.changed(drive=drive, steepness=None), g, seen.total, rate)
            if not layer.inputs_are_known:
                known = None if layer.inputs is None else layer.inputs.values
                layer = layer.changed(inputs=Dense(averaged_into(known, gram((h * root).mT), rate), layer.label))
        if not layer.inputs_are_known and (layer.damped is None or step <= _FRESH_AT_FIRST or step % _REFRESH == 0):
            assert layer.inputs is not None
            layer = _factored(layer, layer.inputs, pace)
        found.append(layer)
    return found


def advance(layers: Sequence[StackLayer], n_data: Tensor, pace: Pace) -> tuple[list[StackLayer], int]:
    """All layers after one step, and how many members took none; `n_data` (K,) are the members' N."""
    steps, steepness, divergences = proposed_steps(layers, n_data.view(-1, 1, 1), pace)
    divergence = sum(divergences[1:], divergences[0])
    share, refused, kept = (
        divergence.clamp_min(pace.kl_bound / pace.step_size**2).rsqrt_(),
        0,
        list[Tensor | None](steepness),
    )
    if not math.isfinite(divergence.sum().item()):  # a step that would ruin the fit is not taken
        good = divergence.isfinite()
        share, refused = torch.where(good, share, 0.0), int((~good).sum())
        steps = [torch.where(good[:, None, None], step, 0.0) for step in steps]
        kept = [layer.steepness for layer in layers]
    known, shares = [layer.mean for layer in layers], [share.view(-1, 1, 1)] * len(steps)
    means = torch._foreach_addcmul(known, steps, shares, math.sqrt(pace.kl_bound))
    moved = zip(layers, means, kept, strict=True)
    return [layer.changed(mean=mean, steepness=steep) for layer, mean, steep in moved], refused


def _each(layers: Sequence[StackLayer], name: str) -> list[Tensor]:
    """This of every layer, where steps have been taken in."""
    return [vars(layer)[name] for layer in layers]


_products: Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]] = torch._foreach_mul  # type: ignore[assignment]
_smaller: Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]] = torch._foreach_minimum  # type: ignore[assignment]


def proposed_steps(
    layers: Sequence[StackLayer], n_data: Tensor, pace: Pace
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Of each layer ΔM (K, D_x, D_y) over α, its steepness (K,), and the divergence (K,) between old and new outputs that
    it means, in nats a row, over α². That is tr(ΔᵀAΔS)/2; how S weighs it changes slowly, and is computed again when there
    is a new S. `n_data` is (K, 1, 1). All layers at once: in small networks, calls take longer than numbers.
    """
    n, damping = [n_data] * len(layers), _each(layers, "damping")
    room = n_data / (pace.prior_share * pace.step_size)  # steps are at most δσ²N over the prior's share
    scale = _smaller(_each(layers, "weakness"), _products(_each(layers, "reach"), [room] * len(layers)))
    drives, means = _each(layers, "drive"), _each(layers, "mean")
    moved = torch._foreach_addcdiv(drives, means, n, [-pace.prior_share / layer.prior_variance for layer in layers])
    torch._foreach_mul_(moved, scale)
    steps = [torch.bmm(inverse, drive) for inverse, drive in zip(_each(layers, "inverse"), moved, strict=True)]
    torch._foreach_addcmul_(moved, steps, damping, -1.0)  # AΔ = drive − δΔ
    lengths = [along.sum((-2, -1)) for along in _products(moved, steps)]  # tr(ΔᵀAΔ)
    steepness = []
    for layer, step, along, length in zip(layers, steps, moved, lengths, strict=True):
        found = layer.steepness
        if found is None:  # over two, as the divergence is
            weighed = (torch.bmm(along.mT, step).mul_(_each([layer], "gradients")[0])).sum((-2, -1))
            found = weighed.div_(length.clamp_min(1e-30)).mul_(0.5)
        steepness.append(found)
    return steps, steepness, _products(steepness, lengths)


def _factored(layer: StackLayer, inputs: Symmetric, pace: Pace) -> StackLayer:
    damping = pace.damping * inputs.diagonal().mean(-1)[:, None, None]
    values = inputs.dense().clone()
    values.diagonal(dim1=-2, dim2=-1).add_(damping[..., 0])
    damped = Dense(values, layer.label)
    inverse, reach = torch.cholesky_inverse(damped.factor), damping * layer.prior_variance
    return layer.changed(damped=damped, damping=damping, reach=reach, inverse=inverse)


def _of_gradients(layer: StackLayer, gradients: Tensor) -> StackLayer:
    """With this S, and what follows from it."""
    squares = gradients.diagonal(dim1=-2, dim2=-1)
    mean = squares.mean(-1, keepdim=True)
    weakness = torch.add(squares, mean, alpha=_LEAST_SHARE).add_(1e-30).rsqrt_().unsqueeze_(-2)
    return layer.changed(gradients=gradients, weakness=weakness, sudden=mean[:, 0] * (_JUMP * squares.shape[-1]))


def _have_jumped(layer: StackLayer, seen: StackPass) -> bool:
    """Whether some member's gradients at the outputs are far larger than its average tells."""
    if layer.sudden is None:
        return True
    squares = torch.linalg.vector_norm(seen.gradients[-1], dim=(-2, -1)).square_().mul_(seen.total)
    return bool((squares > layer.sudden).any())


def _with_gradients(layer: StackLayer, g: Tensor, total: Tensor, rate: float) -> StackLayer:
    """S with a batch taken in; members whose gradients have grown too fast for an average that remembers small ones have
    that of the batch."""
    new, known, sudden = torch.bmm(g, g.mT).mul_(total.view(-1, 1, 1)), layer.gradients, layer.sudden
    if known is not None and sudden is not None:
        trace = new.diagonal(dim1=-2, dim2=-1).sum(-1)
        new = torch.where((trace > sudden).view(-1, 1, 1), new, known.lerp(new, rate))
    return _of_gradients(layer, new)


def _with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)
