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
    drive: Tensor | None = None  # V
    damped: Symmetric | None = None  # A + δI, with its inverse
    damping: Tensor | None = None  # δ, (K,)


@dataclass(frozen=True)
class StackPass:
    """What a batch says about every layer: sums over rows of each member."""

    inputs: list[Tensor]  # of each layer, (K, n, D), without the ones
    gradients: list[Tensor]  # at each layer's outputs, times the rows' weights
    weight: Tensor  # (K, n)


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
    fresh = step <= _FRESH_AT_FIRST or step % _SELDOM == 0
    rate = max(pace.rate if step <= _FRESH_AT_FIRST else 1.0 - (1.0 - pace.rate) ** _SELDOM, 1.0 / step)
    total = seen.weight.sum(-1).clamp_min(torch.finfo(seen.weight.dtype).tiny)[:, None, None]
    found = []
    for layer, h, g in zip(layers, seen.inputs, seen.gradients, strict=True):
        drive = torch.cat([h.mT @ g, g.sum(1, keepdim=True)], 1) / total
        layer = replace(layer, drive=_averaged(layer.drive, drive, max(1.0 - pace.momentum, 1.0 / step)))
        layer = replace(layer, gradients=_gradients(layer.gradients, g, total, rate if fresh else None))
        if not layer.inputs_are_known and (fresh or layer.inputs is None):
            rows = _with_ones(h)
            gram = (rows * seen.weight[..., None]).mT @ rows / total
            known = None if layer.inputs is None else layer.inputs.values
            layer = replace(layer, inputs=Dense(_averaged(known, gram, rate), layer.label))
        if not layer.inputs_are_known and (layer.damped is None or step <= _FRESH_AT_FIRST or step % _REFRESH == 0):
            assert layer.inputs is not None
            layer = _factored(layer, layer.inputs, pace)
        found.append(layer)
    return found


def advance(layers: Sequence[StackLayer], n_data: Tensor, pace: Pace) -> tuple[list[StackLayer], Tensor]:
    """All layers after one step, and the share (K,) of it that each member took; `n_data` (K,) are the members' N."""
    proposed = [proposed_step(layer, n_data, pace) for layer in layers]
    divergence = torch.stack([kl for _, kl in proposed]).sum(0)
    share = (pace.kl_bound / divergence.clamp_min(1e-30)).sqrt().clamp_max(1.0)
    share = torch.where(divergence.isfinite(), share, 0.0)  # a step that would ruin the fit is not taken
    steps = [torch.where(share[:, None, None] > 0, step * share[:, None, None], 0.0) for step, _ in proposed]
    return [replace(layer, mean=layer.mean + step) for layer, step in zip(layers, steps, strict=True)], share


def proposed_step(layer: StackLayer, n_data: Tensor, pace: Pace) -> tuple[Tensor, Tensor]:
    """ΔM (K, D_x, D_y), and the divergence (K,) between old and new outputs that it means, in nats a row."""
    assert layer.gradients is not None
    assert layer.drive is not None
    assert layer.damped is not None
    assert layer.damping is not None
    precision = layer.prior_variance * n_data  # σ² N
    squares = layer.gradients.diagonal(dim1=-2, dim2=-1)
    rms = (squares + _LEAST_SHARE * squares.mean(-1, keepdim=True) + 1e-30).sqrt()
    scale = (pace.step_size / rms).minimum((layer.damping * precision / pace.prior_share)[:, None])
    drive = (layer.drive - layer.mean * (pace.prior_share / precision)[:, None, None]) * scale[:, None, :]
    step = layer.damped.solve(drive)
    moved = drive - layer.damping[:, None, None] * step
    return step, 0.5 * ((moved.mT @ step) * layer.gradients).sum((-2, -1))


def _factored(layer: StackLayer, inputs: Symmetric, pace: Pace) -> StackLayer:
    damping = pace.damping * inputs.diagonal().mean(-1)
    damped = Diagonal(damping[..., None].expand(*damping.shape, inputs.size), layer.label).plus(inputs)
    damped.keep_inverse()
    return replace(layer, damped=damped, damping=damping)


def _gradients(known: Tensor | None, g: Tensor, total: Tensor, rate: float | None) -> Tensor:
    """S with a batch taken in, or without where there is no rate; members whose gradients have grown too fast for an average
    that remembers small ones have that of the batch."""
    if known is None:
        return g.mT @ g / total
    squares = g.square().sum((-2, -1)) / total[:, 0, 0]
    jumped = squares > _JUMP * known.diagonal(dim1=-2, dim2=-1).sum(-1)
    if rate is None and not bool(jumped.any()):
        return known
    new = g.mT @ g / total
    kept = known if rate is None else known.lerp(new, rate)
    return torch.where(jumped[:, None, None], new, kept)


def _averaged(known: Tensor | None, new: Tensor, rate: float) -> Tensor:
    return new if known is None else known.lerp(new, rate)


def _with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)
