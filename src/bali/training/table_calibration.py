"""What held-out rows tell after a table's networks are trained: noise and its tails, or a width and a temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bali.predictive.likelihoods import Likelihood
from bali.predictive.mixtures import ClassPredictive, RegressionPredictive
from bali.training.calibration import Part, fit_temperature
from bali.training.fit_calibration import WIDTHS, likely_width
from bali.training.table_posterior import StackPosterior, TablePosterior, learn_row_noise

_DOFS = (3.0, 4.0, 6.0, 10.0, 30.0, 300.0)
_TYPICAL_DOF = 10.0
_LOG_SCALES = torch.linspace(-1.5, 1.0, 51).tolist()  # of the noise's standard deviation
#: Prior standard deviations of the logarithms of scale and degrees of freedom: a few rows do not move them far.
_SCALE_STD, _DOF_STD = 0.5, 1.0
#: Many members have no less than this share of the noise variance that a few have on held-out rows.
_LEAST_SHARE = 0.3
#: Held-out rows: more tell two numbers no better.
_MOST_ROWS = 4000
_SAMPLES = 32


def calibrated(
    stacks: Sequence[StackPosterior],
    likelihoods: Sequence[Likelihood],
    encoded: Sequence[Tensor],  # all rows, as each stack sees them
    y: Tensor,
    weight: Tensor,
    held_out: Tensor,  # (G, n), shares of the rows' weights
    seed: int,
    offset: Tensor | None = None,
) -> TablePosterior:
    """The mixture of these stacks. Members take turns in holding out the groups."""
    posterior = TablePosterior(tuple(stacks), tuple(likelihoods), seed, offset=offset)
    groups = _groups(held_out, weight, stacks[0].n_members)
    if posterior.is_regression:
        return _with_noise(posterior, encoded, y, weight, groups)
    return _with_width(posterior, encoded, y, groups)


class Group(NamedTuple):
    """Rows that some members hold out."""

    rows: Tensor
    weight: Tensor
    members: range

    def some(self, n_groups: int) -> Group:
        """Every so many of its rows; the first ones would be no fair sample, as tables come sorted."""
        step = -(-len(self.rows) * n_groups // _MOST_ROWS)
        return Group(self.rows[::step], self.weight[::step], self.members)


def _groups(held_out: Tensor, weight: Tensor, n_members: int) -> list[Group]:
    found = []
    for number, share in enumerate(held_out):
        rows, members = share.nonzero()[:, 0], range(number, n_members, len(held_out))
        if len(rows) and len(members):
            found.append(Group(rows, weight[rows] * share[rows].to(weight.dtype), members))
    return found


def held_out_predictions(
    posterior: TablePosterior, encoded: Sequence[Tensor], y: Tensor, weight: Tensor, held_out: Tensor
) -> list[Part]:
    """Of every so many held-out rows, by the members of a calibrated posterior that hold them out."""
    groups = _groups(held_out, weight, posterior.stacks[0].n_members)
    return _parts(posterior, encoded, y, [group.some(len(groups)) for group in groups])


def _parts(posterior: TablePosterior, encoded: Sequence[Tensor], y: Tensor, groups: Sequence[Group]) -> list[Part]:
    return [
        Part(posterior.predictive([x[g.rows] for x in encoded], _SAMPLES, g.members), y[g.rows], g.weight) for g in groups
    ]


def _with_noise(
    posterior: TablePosterior, encoded: Sequence[Tensor], y: Tensor, weight: Tensor, groups: Sequence[Group]
) -> TablePosterior:
    d = y.shape[-1]
    eye = torch.eye(d, dtype=torch.float64, device=y.device)
    if not groups:  # nothing was held out: the residuals of the training rows have to do
        found = replace(posterior, noise=eye).predictive(encoded, 1)
        residual = (y - found.mean).double()
        return replace(posterior, noise=_covariance(residual, weight), noise_dof=_TYPICAL_DOF)
    unit = replace(posterior, noise=1e-6 * eye)
    rows, held_weight = (torch.cat(parts) for parts in ([g.rows for g in groups], [g.weight for g in groups]))
    means = torch.cat([unit.predictive([x[g.rows] for x in encoded], 1, g.members).mean for g in groups])
    residual = (y[rows] - means).double()
    generator = torch.Generator(device=y.device).manual_seed(posterior.seed)
    x = encoded[0][rows]
    row_noise = learn_row_noise(x, means, residual.to(x.dtype), held_weight, generator)
    if row_noise is not None:
        residual = residual / row_noise(x, means).double()
    start = replace(posterior, noise=_covariance(residual, held_weight), row_noise=row_noise)
    parts = _parts(start, encoded, y, [group.some(len(groups)) for group in groups])
    scale, dof = _noise_of_many(parts, posterior.n_members)
    assert start.noise is not None
    return replace(start, noise=start.noise * scale**2, noise_dof=dof)


def _noise_of_many(parts: Sequence[Part], n_members: int) -> tuple[float, float]:
    """Scale and tails of the noise for a mixture of so many members, from mixtures of the few that hold a row out.

    Part of the error of a few members is their own, and a mixture of many has less of it: the variance that makes held-out
    rows most likely falls with the number J of components as c² = c∞² + (c₁² − c∞²)/J, and two points of this line are seen.
    """
    few = parts[0].predictive.n_components
    dof = max(_DOFS, key=lambda v: max(_score(parts, math.exp(s), v, mixed=True) for s in _LOG_SCALES[::5]))

    def best(*, mixed: bool) -> float:
        return math.exp(max(_LOG_SCALES, key=lambda s: _score(parts, math.exp(s), dof, mixed=mixed)))

    of_few = best(mixed=True) ** 2
    if few == 1 or few >= n_members:
        return math.sqrt(of_few), dof
    of_one = best(mixed=False) ** 2
    of_all = max((of_few - of_one / few) / (1.0 - 1.0 / few), _LEAST_SHARE * of_few)
    return math.sqrt(min(of_few, of_all + max(of_one - of_all, 0.0) / n_members)), dof


def _score(parts: Sequence[Part], scale: float, dof: float, *, mixed: bool) -> float:
    """Log-likelihood of the held-out rows with a weak prior, of mixtures or of single components on average."""
    total = -0.5 * (math.log(scale) / _SCALE_STD) ** 2 - 0.5 * (math.log(dof / _TYPICAL_DOF) / _DOF_STD) ** 2
    for predictive, y, weight in parts:
        assert isinstance(predictive, RegressionPredictive)
        values = predictive.with_noise(scale**2, dof).component_log_prob(y)
        row = values.logsumexp(0) - math.log(len(values)) if mixed else values.mean(0)
        total += float((row * weight).sum())
    return total


def _covariance(residual: Tensor, weight: Tensor) -> Tensor:
    d = residual.shape[-1]
    eye = torch.eye(d, dtype=torch.float64, device=residual.device)
    return (residual * weight.double()[:, None]).mT @ residual / weight.double().sum() + 1e-10 * eye


def _with_width(posterior: TablePosterior, encoded: Sequence[Tensor], y: Tensor, groups: Sequence[Group]) -> TablePosterior:
    if not groups:
        return posterior
    few = [group.some(len(groups)) for group in groups]

    def parts(width: float) -> list[Part]:
        return _parts(replace(posterior, width=width), encoded, y, few)

    width = likely_width(WIDTHS, lambda width: _tempered(parts(width))[0])
    return replace(posterior, width=width, temperature=_tempered(parts(width))[1])


def _tempered(parts: Sequence[Part]) -> tuple[float, float]:
    """Log-likelihood of the held-out rows at the best temperature, and that one."""
    temperature = 1.0
    if isinstance(parts[0].predictive, ClassPredictive):
        temperature = fit_temperature(parts)
        parts = [p._replace(predictive=p.predictive.tempered(temperature)) for p in parts]
    return sum(float((p.predictive.log_prob(p.y) * p.weight).sum()) for p in parts), temperature
