"""The update of `joint.py` for a stack of perceptrons: K members of one shape, every tensor with a leading dimension of K.

Tables train many small networks at once. Their rows and weights are plain matrices, so that forward and backward pass are a
few products of batches. Passes are written out: a module, hooks and autograd would take longer than these.
`tests/inference/test_stack_pass.py` holds both passes against autograd, `tests/inference/test_stack_update.py` a step
against that of `joint.py`. Each member has its own weights of rows (zero where it holds a row out), its own number of rows N
and its own bound on the divergence of a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bali.conjugate.averages import averaged_into
from bali.conjugate.moments import input_gram
from bali.conjugate.symmetric import Dense, Symmetric
from bali.inference.joint import Pace
from bali.layers.modules import Back, bent

# --- passes -----------------------------------------------------------------------------------------------------------


#: Below so many columns of the outputs, products of a batch are three to eight times faster the other way round.
_FEW_COLUMNS = 16


@dataclass(frozen=True)
class Forward:
    """A forward pass, and what the way back needs of it."""

    outputs: Tensor  # (K, n, D)
    inputs: list[Tensor]  # of each layer, (K, n, D), without the ones
    back: list[Back]  # through each activation


@dataclass(frozen=True)
class StackPass:
    """What a batch says about every layer."""

    inputs: list[Tensor]  # of each layer, (K, n, D), without the ones
    gradients: list[Tensor]  # at each layer's outputs, times the rows' shares
    share: Tensor  # (K, n), of each row in its member's weight of the batch
    total: Tensor  # (K,), that weight


def forward(means: Sequence[Tensor], activation: nn.Module, x: Tensor) -> Forward:
    """With weights (K, D_x, D_y) of each layer, the bias in the last row; x is (n, D), or (K, n, D) for rows of the members'
    own."""
    h = x.expand(len(means[0]), *x.shape[-2:])
    inputs, back = [h], []
    for mean in means[:-1]:
        h, way = bent(activation, _affine(h, mean))
        inputs.append(h)
        back.append(way)
    return Forward(_affine(h, means[-1]), inputs, back)


def backward(means: Sequence[Tensor], passed: Forward, gradient: Tensor) -> list[Tensor]:
    """Gradients at the outputs of every layer from the one at the last."""
    found = [gradient]
    for mean, back in zip(reversed(means[1:]), reversed(passed.back), strict=True):
        weights, g = mean[:, :-1].mT, found[-1]  # of a single column, a plain product of all pairs is the faster one
        found.append(back(g * weights if g.shape[-1] == 1 else torch.bmm(g, weights)))
    return found[::-1]


def cross(h: Tensor, g: Tensor) -> Tensor:
    """(h, 1)ᵀg, (K, D + 1, P)."""
    return torch.cat([product(h.mT, g), g.sum(1, keepdim=True)], 1)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Of two batches of matrices."""
    return torch.bmm(right.mT, left.mT).mT if right.shape[-1] < _FEW_COLUMNS else torch.bmm(left, right)


def _affine(h: Tensor, mean: Tensor) -> Tensor:
    """(h, 1) M"""
    if mean.shape[-1] < _FEW_COLUMNS:
        return torch.baddbmm(mean[:, -1:].mT, mean[:, :-1].mT, h.mT).mT
    return torch.baddbmm(mean[:, -1:], h, mean[:, :-1])


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
    damping: Tensor | None = None  # δ, (K,)


def with_known_inputs(layer: StackLayer, x: Tensor, weight: Tensor, pace: Pace) -> StackLayer:
    """A layer whose inputs are the rows x (n, D) themselves: A is that of all of them, and is factored once."""
    total = weight.sum(-1)
    gram = torch.zeros_like(layer.mean[:, :, :1] @ layer.mean[:, :, :1].mT)
    for start in range(0, len(x), 4096):
        rows = _with_ones(x[start : start + 4096])
        gram += torch.einsum("kn,ni,nj->kij", weight[:, start : start + 4096], rows, rows)
    inputs = Dense(gram / total[:, None, None], layer.label)
    return _factored(replace(layer, inputs=inputs, inputs_are_known=True), inputs, pace)


def take_in(layers: Sequence[StackLayer], seen: StackPass, step: int, pace: Pace) -> list[StackLayer]:
    """The averages after one more batch; `step` counts from 1. The first values are plain means of all so far."""
    fresh = step <= _FRESH_AT_FIRST or step % _SELDOM == 0 or _have_jumped(layers[-1], seen)
    rate = max(pace.rate if step <= _FRESH_AT_FIRST else 1.0 - (1.0 - pace.rate) ** _SELDOM, 1.0 / step)
    root = seen.share.sqrt() if fresh else None
    found = []
    for layer, h, g in zip(layers, seen.inputs, seen.gradients, strict=True):
        drive = averaged_into(layer.drive, cross(h, g), max(1.0 - pace.momentum, 1.0 / step))
        if not fresh:
            layer = replace(layer, drive=drive)
        else:
            layer = _with_gradients(replace(layer, drive=drive, steepness=None), g, seen.total, rate)
            if not layer.inputs_are_known:
                gram = input_gram(h, bias=True, root=root).dense()
                known = None if layer.inputs is None else layer.inputs.values
                layer = replace(layer, inputs=Dense(averaged_into(known, gram, rate), layer.label))
        if not layer.inputs_are_known and (layer.damped is None or step <= _FRESH_AT_FIRST or step % _REFRESH == 0):
            assert layer.inputs is not None
            layer = _factored(layer, layer.inputs, pace)
        found.append(layer)
    return found


def advance(layers: Sequence[StackLayer], n_data: Tensor, pace: Pace) -> tuple[list[StackLayer], Tensor]:
    """All layers after one step, and the share (K,) of it that each member took; `n_data` (K,) are the members' N."""
    prior_weight = n_data.view(-1, 1, 1).reciprocal().mul_(pace.prior_share)
    proposed = [proposed_step(layer, prior_weight, pace) for layer in layers]
    divergence = sum((kl for _, _, kl in proposed[1:]), proposed[0][2])
    share = divergence.clamp_min(pace.kl_bound).rsqrt_().mul_(math.sqrt(pace.kl_bound))
    if not math.isfinite(divergence.sum().item()):  # a step that would ruin the fit is not taken
        good = divergence.isfinite()
        share = torch.where(good, share, 0.0)
        kept = [torch.where(good[:, None, None], step, 0.0) for step, _, _ in proposed]
        return [replace(layer, mean=_moved(layer, step, share)) for layer, step in zip(layers, kept, strict=True)], share
    return [
        replace(layer, mean=_moved(layer, step, share), steepness=steepness)
        for layer, (step, steepness, _) in zip(layers, proposed, strict=True)
    ], share


def _moved(layer: StackLayer, step: Tensor, share: Tensor) -> Tensor:
    return torch.addcmul(layer.mean, step, share.view(-1, 1, 1))


def proposed_step(layer: StackLayer, prior_weight: Tensor, pace: Pace) -> tuple[Tensor, Tensor, Tensor]:
    """ΔM (K, D_x, D_y), its steepness (K,), and the divergence (K,) between old and new outputs that it means, in nats a
    row. That is tr(ΔᵀAΔS)/2; how S weighs it changes slowly, and is computed again when there is a new S.

    `prior_weight` (K, 1, 1) is the share of the prior's pull over N.
    """
    assert layer.gradients is not None
    assert layer.drive is not None
    assert layer.inverse is not None
    assert layer.damping is not None
    weakness = _weakness(layer.gradients) if layer.weakness is None else layer.weakness
    damping = layer.damping.view(-1, 1, 1)
    bound = torch.div(damping, prior_weight).mul_(layer.prior_variance)  # δ σ² N over the prior's share
    scale = weakness.mul(pace.step_size).minimum(bound)
    drive = torch.addcmul(layer.drive, layer.mean, prior_weight, value=-1.0 / layer.prior_variance).mul_(scale)
    step = product(layer.inverse, drive)
    moved = drive.addcmul_(step, damping, value=-1.0)  # AΔ = drive − δΔ
    length = (moved * step).sum((-2, -1))  # tr(ΔᵀAΔ)
    steepness = layer.steepness
    if steepness is None:  # over two, as the divergence is
        steepness = (torch.bmm(moved.mT, step).mul_(layer.gradients)).sum((-2, -1)).div_(length.clamp_min(1e-30)).mul_(0.5)
    return step, steepness, steepness * length


def _factored(layer: StackLayer, inputs: Symmetric, pace: Pace) -> StackLayer:
    damping = pace.damping * inputs.diagonal().mean(-1)
    values = inputs.dense().clone()
    values.diagonal(dim1=-2, dim2=-1).add_(damping[..., None])
    damped = Dense(values, layer.label)
    return replace(layer, damped=damped, damping=damping, inverse=torch.cholesky_inverse(damped.factor))


def _weakness(gradients: Tensor) -> Tensor:
    squares = gradients.diagonal(dim1=-2, dim2=-1)
    return torch.add(squares, squares.mean(-1, keepdim=True), alpha=_LEAST_SHARE).add_(1e-30).rsqrt_().unsqueeze_(-2)


def _have_jumped(layer: StackLayer, seen: StackPass) -> bool:
    """Whether some member's gradients at the outputs are far larger than its average tells."""
    sudden = _sudden(layer)
    if sudden is None:
        return True
    squares = seen.gradients[-1].square().sum((-2, -1)).mul_(seen.total)
    return bool((squares > sudden).any())


def _sudden(layer: StackLayer) -> Tensor | None:
    if layer.sudden is not None or layer.gradients is None:
        return layer.sudden
    return _JUMP * _trace(layer.gradients)


def _with_gradients(layer: StackLayer, g: Tensor, total: Tensor, rate: float) -> StackLayer:
    """S with a batch taken in; members whose gradients have grown too fast for an average that remembers small ones have
    that of the batch."""
    new, known, sudden = torch.bmm(g.mT, g).mul_(total.view(-1, 1, 1)), layer.gradients, _sudden(layer)
    if known is not None and sudden is not None:
        new = torch.where((_trace(new) > sudden).view(-1, 1, 1), new, known.lerp(new, rate))
    return replace(layer, gradients=new, weakness=_weakness(new), sudden=_JUMP * _trace(new))


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)
