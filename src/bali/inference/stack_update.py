"""The update of `joint.py` for a stack of perceptrons: K members of one shape, every tensor with a leading dimension of K.

Tables train many small networks at once. Their rows and weights are plain matrices, so that forward and backward pass are a
few products of batches, without a module, hooks or a copy of the weights; `tests/inference/test_stack_update.py` holds a
step against that of `joint.py`. Each member has its own weights of rows (zero where it holds a row out), its own number of
rows N and its own bound on the divergence of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bali.conjugate.symmetric import Dense, Diagonal, Symmetric
from bali.inference.joint import Pace

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
    rms: Tensor | None = None  # of the gradients of each unit, from S, (K, D_y)
    steepness: Tensor | None = None  # tr(ΔᵀAΔS) / tr(ΔᵀAΔ) of the last step that S was new at, (K,)
    drive: Tensor | None = None  # V
    damped: Symmetric | None = None  # A + δI, with its inverse
    damping: Tensor | None = None  # δ, (K,)


@dataclass(frozen=True)
class StackPass:
    """What a batch says about every layer."""

    inputs: list[Tensor]  # of each layer, (K, n, D), without the ones
    gradients: list[Tensor]  # at each layer's outputs, times the rows' shares
    share: Tensor  # (K, n), of each row in its member's weight of the batch
    total: Tensor  # (K,), that weight


def forward(means: Sequence[Tensor], activation: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Outputs (K, n, D), inputs and outputs of every layer; x is (n, D), or (K, n, D) for rows of the members' own."""
    h = x.expand(len(means[0]), *x.shape[-2:])
    inputs, outputs = [], []
    for mean in means:
        inputs.append(h.detach())
        z = torch.baddbmm(mean[:, -1:], h, mean[:, :-1])
        if not z.requires_grad and torch.is_grad_enabled():
            z.requires_grad_()
        outputs.append(z)
        h = activation(z)
    return outputs[-1], inputs, outputs


def backward(outputs: Sequence[Tensor], gradient: Tensor) -> list[Tensor]:
    """Gradients at the outputs of every layer from the one at the last."""
    if len(outputs) == 1:
        return [gradient]
    return [*torch.autograd.grad(outputs[-1], list(outputs[:-1]), gradient), gradient]


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
    fresh = step <= _FRESH_AT_FIRST or step % _SELDOM == 0 or _have_jumped(layers[-1].gradients, seen)
    rate = max(pace.rate if step <= _FRESH_AT_FIRST else 1.0 - (1.0 - pace.rate) ** _SELDOM, 1.0 / step)
    found = []
    for layer, h, g in zip(layers, seen.inputs, seen.gradients, strict=True):
        layer = replace(layer, drive=_drive(layer.drive, h, g, max(1.0 - pace.momentum, 1.0 / step)))
        if fresh:
            gradients = _gradients(layer.gradients, g, seen.total, rate)
            layer = replace(layer, gradients=gradients, rms=_rms(gradients), steepness=None)
        if not layer.inputs_are_known and fresh:
            rows = _with_ones(h)
            gram = (rows * seen.share[..., None]).mT @ rows
            known = None if layer.inputs is None else layer.inputs.values
            layer = replace(layer, inputs=Dense(gram if known is None else known.lerp(gram, rate), layer.label))
        if not layer.inputs_are_known and (layer.damped is None or step <= _FRESH_AT_FIRST or step % _REFRESH == 0):
            assert layer.inputs is not None
            layer = _factored(layer, layer.inputs, pace)
        found.append(layer)
    return found


def advance(layers: Sequence[StackLayer], n_data: Tensor, pace: Pace) -> tuple[list[StackLayer], Tensor]:
    """All layers after one step, and the share (K,) of it that each member took; `n_data` (K,) are the members' N."""
    proposed = [proposed_step(layer, n_data, pace) for layer in layers]
    divergence = torch.stack([kl for _, _, kl in proposed]).sum(0)
    share = (pace.kl_bound / divergence.clamp_min(1e-30)).sqrt().clamp_max(1.0)
    good = divergence.isfinite()
    if not bool(good.all()):  # a step that would ruin the fit is not taken
        share = torch.where(good, share, 0.0)
        kept = [torch.where(good[:, None, None], step, 0.0) for step, _, _ in proposed]
        return [replace(layer, mean=_moved(layer, step, share)) for layer, step in zip(layers, kept, strict=True)], share
    return [
        replace(layer, mean=_moved(layer, step, share), steepness=steepness)
        for layer, (step, steepness, _) in zip(layers, proposed, strict=True)
    ], share


def _moved(layer: StackLayer, step: Tensor, share: Tensor) -> Tensor:
    return torch.addcmul(layer.mean, step, share[:, None, None])


def proposed_step(layer: StackLayer, n_data: Tensor, pace: Pace) -> tuple[Tensor, Tensor, Tensor]:
    """ΔM (K, D_x, D_y), its steepness (K,), and the divergence (K,) between old and new outputs that it means, in nats a
    row. That is tr(ΔᵀAΔS)/2; how S weighs it changes slowly, and is computed again when there is a new S."""
    assert layer.gradients is not None
    assert layer.drive is not None
    assert layer.damped is not None
    assert layer.damping is not None
    precision = layer.prior_variance * n_data  # σ² N
    rms = _rms(layer.gradients) if layer.rms is None else layer.rms
    scale = (pace.step_size / rms).minimum((layer.damping * precision / pace.prior_share)[:, None])
    drive = torch.addcmul(layer.drive, layer.mean, (-pace.prior_share / precision)[:, None, None]).mul_(scale[:, None, :])
    step = layer.damped.solve(drive)
    moved = drive.addcmul_(step, layer.damping[:, None, None], value=-1.0)  # AΔ = drive − δΔ
    length = (moved.flatten(1)[:, None] @ step.flatten(1)[..., None])[:, 0, 0]  # tr(ΔᵀAΔ)
    steepness = layer.steepness
    if steepness is None:
        steepness = ((moved.mT @ step) * layer.gradients).sum((-2, -1)) / length.clamp_min(1e-30)
    return step, steepness, 0.5 * steepness * length


def _factored(layer: StackLayer, inputs: Symmetric, pace: Pace) -> StackLayer:
    damping = pace.damping * inputs.diagonal().mean(-1)
    damped = Diagonal(damping[..., None].expand(*damping.shape, inputs.size), layer.label).plus(inputs)
    damped.keep_inverse()
    return replace(layer, damped=damped, damping=damping)


def _drive(known: Tensor | None, h: Tensor, g: Tensor, rate: float) -> Tensor:
    """The average of XᵀG with a batch taken in."""
    if known is None:
        return torch.cat([h.mT @ g, g.sum(1, keepdim=True)], 1)
    new = known * (1.0 - rate)
    new[:, :-1].baddbmm_(h.mT, g, alpha=rate)
    new[:, -1].add_(g.sum(1), alpha=rate)
    return new


def _rms(gradients: Tensor) -> Tensor:
    squares = gradients.diagonal(dim1=-2, dim2=-1)
    return (squares + _LEAST_SHARE * squares.mean(-1, keepdim=True) + 1e-30).sqrt()


def _have_jumped(known: Tensor | None, seen: StackPass) -> bool:
    """Whether some member's gradients at the outputs are far larger than its average tells."""
    if known is None:
        return True
    squares = seen.gradients[-1].square().sum((-2, -1)) * seen.total
    return bool((squares > _JUMP * known.diagonal(dim1=-2, dim2=-1).sum(-1)).any())


def _gradients(known: Tensor | None, g: Tensor, total: Tensor, rate: float) -> Tensor:
    """S with a batch taken in; members whose gradients have grown too fast for an average that remembers small ones have
    that of the batch."""
    new = (g.mT @ g) * total[:, None, None]
    if known is None:
        return new
    squares, average = (values.diagonal(dim1=-2, dim2=-1).sum(-1) for values in (new, known))
    return torch.where((squares > _JUMP * average)[:, None, None], new, known.lerp(new, rate))


def _with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)
