"""A second form of the update: the prior in the objective, so that its fixed point is the log joint's (docs/method.md).

The paper's mean moves by ρ R (XᵀG D − R₀⁻¹M): how strongly the prior pulls depends on the step size, the gradients and
N_eff. Here targets move along the gradient of the log joint instead, and the regression's own prior is a damping about the
last mean:

    V  ← average of XᵀG / n                  mean gradient of the log-likelihood, with momentum
    A  ← average of XᵀX / n,  S ← average of GᵀG / n
    ΔM = (A + δ I)⁻¹ (V − (M − M₀) / (σ² N P)) D,       D = diag(min(α / rms(g_j), δ σ² N P))

with N examples of P rows each, σ² the prior variance of the weights and δ a share of the mean of A's diagonal. It rests
where N P · E[x g] = (M − M₀) / σ², whatever α, δ and the gradients are. The bound on D keeps the prior's own step below a
whole one for units whose gradients vanish. All layers' steps are shortened together where the Kullback-Leibler divergence
between the old and the new outputs, estimated from A and S, would exceed a bound: a step that would ruin the fit is not
taken.

Where earlier data have left a precision A₀ ⊗ S₀ about M₀, its pull A₀ (M − M₀) S₀ is subtracted too, and c A₀ is part of the
matrix that is solved with, c so large that this pull's own step is below a whole one: the fixed point stays the log joint's.

XᵀG is what autograd gives as the gradient of the weights, at every step. A and S change slowly: their averages take in
every fourth batch, and the factor of A + δI serves twenty steps. The other steps cost little more than an optimizer's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from bali.conjugate.averages import averaged_into
from bali.conjugate.matrix_normal import Kronecker
from bali.conjugate.symmetric import Dense, Diagonal, Symmetric
from bali.inference.joint_pass import RowSums

#: Squared gradients below this share of the layer's mean one count as that share: such units hardly matter.
_LEAST_SHARE = 1e-4
#: A factor serves so many steps: A changes slowly, and the first steps change it most.
_REFRESH, _FRESH_AT_FIRST = 20, 5
#: XᵀX and GᵀG are averaged at every fourth step, with four times the rate: they cost as much as a pass.
_SELDOM = 4
#: An average of squared gradients that is so many times smaller than a batch's is given up for it.
_JUMP = 4.0
#: A₀ may be so much smaller along some inputs than on average that float32 cannot factor the sum: so much is added there.
_LEAST_HELD = 1e-4
#: Steps of an output may grow so much until the next factor, where earlier data hold against them.
_ROOM = 2.0


def _without_dust(values: Tensor) -> Tensor:
    """Averages of units that have died fade into subnormal numbers, with which processors are ten times slower."""
    return functional.hardshrink(values, 1e-30)


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum()


@dataclass(frozen=True)
class JointLayer:
    """All that is kept of one layer between steps."""

    mean: Tensor  # M, (..., D_x, D_y)
    prior_mean: Tensor | None  # M₀; None is zero
    prior_variance: float  # σ²
    label: str = "inputs"  # for messages about its matrices
    step_share: float = 1.0  # of α: less where blocks of one layer move the same outputs
    rows_per_example: float = 1.0  # P
    inputs: Symmetric | None = None  # A
    gradients: Tensor | None = None  # S, (..., D_y, D_y)
    weakness: Tensor | None = None  # one over the root mean square of each unit's gradients, from S, (..., D_y)
    drive: Tensor | None = None  # P V
    damped: Symmetric | None = None  # A + δI of the last refreshment, with its factor
    damping: Tensor | None = None  # δ, (...,)
    steepness: Tensor | None = None  # tr(ΔᵀAΔS) / tr(ΔᵀAΔ) of the last step that S was new at
    earlier: Kronecker | None = None  # A₀ ⊗ S₀ of earlier data, an example of the present ones
    most: Tensor | None = None  # of D, (..., D_y), that the pull of the earlier data allows until the next factor

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds of it."""
        found = {"mean": self.mean, "prior_mean": self.prior_mean, "gradients": self.gradients, "drive": self.drive}
        found |= {"inputs": None if self.inputs is None else self.inputs.values, "damping": self.damping}
        found |= {"damped": None if self.damped is None else self.damped.values, "steepness": self.steepness}
        found |= {"most": self.most}
        return {name: value for name, value in found.items() if value is not None}

    def with_tensors(self, tensors: Mapping[str, Tensor], rows_per_example: float, *, is_diagonal: bool) -> JointLayer:
        """This layer with what `tensors` gave."""
        kind = Diagonal if is_diagonal else Dense

        def symmetric(name: str) -> Symmetric | None:
            return kind(tensors[name], self.label) if name in tensors else None

        damped = symmetric("damped")
        if damped is not None:
            damped.keep_inverse()
        return replace(
            self,
            mean=tensors["mean"],
            prior_mean=tensors.get("prior_mean"),
            rows_per_example=rows_per_example,
            inputs=symmetric("inputs"),
            gradients=tensors.get("gradients"),
            weakness=None,
            drive=tensors.get("drive"),
            damped=damped,
            damping=tensors.get("damping"),
            steepness=tensors.get("steepness"),
            most=tensors.get("most"),
        )

    @property
    def departure(self) -> Tensor:
        """M − M₀"""
        return self.mean if self.prior_mean is None else self.mean - self.prior_mean


@dataclass(frozen=True)
class Pace:
    """How far a step may go, and how long averages remember."""

    step_size: float  # α
    kl_bound: float  # of one step, in nats an example
    momentum: float = 0.9  # of V
    rate: float = 0.05  # of A and S
    damping: float = 0.1  # δ over the mean of A's diagonal
    prior_share: float = 1.0  # of the prior's pull: it grows to 1 in the first steps, when gradients may still be tiny


def needs_statistics(step: int) -> bool:
    """Whether a step, counted from 1, needs XᵀX and GᵀG."""
    return step <= _FRESH_AT_FIRST or step % _SELDOM == 0


def take_in(layer: JointLayer, sums: RowSums, n_examples: float, step: int, pace: Pace) -> JointLayer:
    """The averages after one more batch, whose sums are overwritten; `step` counts from 1. The first values are plain means
    of all so far."""
    if sums.xx is not None and sums.yy is not None:
        layer = _with_statistics(layer, sums.xx, sums.yy, sums.n, n_examples, step, pace)
        sums.xx = sums.yy = None  # they are large
    inputs = layer.inputs
    assert inputs is not None
    layer = replace(layer, drive=averaged_into(layer.drive, sums.xy, max(1.0 - pace.momentum, 1.0 / step)))
    if layer.damped is None or step <= _FRESH_AT_FIRST or step % _REFRESH == 0:
        damping = pace.damping * inputs.diagonal().mean(-1)
        damped = replace(inputs, values=_written_over(layer.damped, inputs.values))
        damped.diagonal().add_(damping[..., None])
        most = None
        if layer.earlier is not None:
            most = _ROOM * pace.step_size * layer.step_share * _weakness(layer)
            damped = damped.plus(_held(layer.earlier, most, layer.rows_per_example))
        damped.keep_inverse()
        layer = replace(layer, damped=damped, damping=damping, most=most)
    return layer


def _written_over(old: Symmetric | None, values: Tensor) -> Tensor:
    """A copy of the values in the memory of the old matrix, whose factor is let go."""
    if old is None or old.values.shape != values.shape:
        return values.clone()
    old.forget_factor()
    return old.values.copy_(values)


def _weakness(layer: JointLayer) -> Tensor:
    """1 / rms(g_j), (..., D_y)."""
    if layer.weakness is not None:
        return layer.weakness
    assert layer.gradients is not None
    squares = layer.gradients.diagonal(dim1=-2, dim2=-1)
    return torch.add(squares, squares.mean(-1, keepdim=True), alpha=_LEAST_SHARE).add_(1e-30).rsqrt_()


def _held(earlier: Kronecker, most: Tensor, rows_per_example: float) -> Symmetric:
    """c A₀, where c is the largest eigenvalue of S₀ D / P: (A + δI + cA₀)⁻¹ A₀ ΔS₀D/P is then at most Δ."""
    root = most.to(earlier.outputs.dtype).sqrt()
    largest = torch.linalg.eigvalsh(root.unsqueeze(-1) * earlier.outputs * root.unsqueeze(-2))[..., -1]
    scaled = replace(earlier.inputs, values=earlier.inputs.values.clone())
    scaled.scale_(largest.clamp_min(0.0) / rows_per_example)
    least = _LEAST_HELD * scaled.diagonal().mean(-1, keepdim=True)
    return Diagonal(least.expand_as(scaled.diagonal())).plus(scaled)


def _with_statistics(
    layer: JointLayer, xx: Symmetric, yy: Tensor, n: float, n_examples: float, step: int, pace: Pace
) -> JointLayer:
    """With XᵀX and GᵀG of n rows averaged in; A is written over."""
    taken = step if step <= _FRESH_AT_FIRST else _FRESH_AT_FIRST + step // _SELDOM - _FRESH_AT_FIRST // _SELDOM
    rate = max(pace.rate if step <= _FRESH_AT_FIRST else 1.0 - (1.0 - pace.rate) ** _SELDOM, 1.0 / taken)
    xx.scale_(1.0 / n)
    inputs = replace(xx, name=layer.label)
    if layer.inputs is not None:
        inputs = replace(inputs, values=averaged_into(inputs.values, layer.inputs.values, 1.0 - rate))
    gradients, known = yy.div_(n), layer.gradients
    if known is not None and float(_trace(gradients)) > _JUMP * float(_trace(known)):
        known = None  # gradients have grown too fast for an average that remembers small ones
    layer = replace(
        layer,
        mean=_without_dust(layer.mean),
        rows_per_example=n / n_examples,
        inputs=inputs,
        gradients=_without_dust(averaged_into(known, gradients, rate)),
        weakness=None,
        drive=None if layer.drive is None else _without_dust(layer.drive),
        steepness=None,
    )
    return replace(layer, weakness=_weakness(layer))


def proposed_step(layer: JointLayer, n_data: int, pace: Pace) -> tuple[Tensor, Tensor, Tensor]:
    """ΔM, its steepness, and the divergence between old and new outputs that it means, in nats an example.

    That is tr(ΔᵀAΔS)/2. How S weighs it changes slowly, and is computed again when there is a new S.
    """
    assert layer.gradients is not None
    assert layer.drive is not None
    assert layer.damped is not None
    assert layer.damping is not None
    precision = layer.prior_variance * n_data * layer.rows_per_example  # σ² N P
    rows = layer.rows_per_example
    bound = layer.damping * (precision / pace.prior_share / rows)
    scale = (_weakness(layer) * (pace.step_size * layer.step_share / rows)).minimum(bound.unsqueeze(-1))
    if layer.most is not None:
        scale = scale.minimum(layer.most / rows)
    drive = torch.sub(layer.drive, layer.departure, alpha=pace.prior_share * rows / precision)
    if layer.earlier is not None:
        drive.sub_(layer.earlier.times(layer.departure))
    drive.mul_(scale.unsqueeze(-2))
    step = layer.damped.solve(drive)
    # AΔ = drive − δΔ, with cA₀ of earlier data counted as part of A.
    moved = drive.addcmul_(step, layer.damping[..., None, None], value=-1.0)
    length = (moved * step).sum((-2, -1))  # tr(ΔᵀAΔ)
    steepness = layer.steepness
    if steepness is None:
        steepness = ((moved.mT @ step) * layer.gradients).sum((-2, -1)) / length.clamp_min(1e-30)
    return step, steepness, 0.5 * rows * (steepness * length).sum()


def advance(layers: Mapping[str, JointLayer], n_data: int, pace: Pace) -> tuple[dict[str, JointLayer], float]:
    """All layers after one step, and the share of it that was taken."""
    proposed = {name: proposed_step(layer, n_data, pace) for name, layer in layers.items()}
    divergence = sum(float(kl) for _, _, kl in proposed.values())
    if not math.isfinite(divergence):
        return dict(layers), 0.0
    share = min(1.0, math.sqrt(pace.kl_bound / max(divergence, 1e-30)))
    return {
        name: replace(layer, mean=torch.add(layer.mean, step, alpha=share, out=step), steepness=steepness)
        for (name, layer), (step, steepness, _) in zip(layers.items(), proposed.values(), strict=True)
    }, share
