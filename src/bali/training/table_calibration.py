"""What held-out rows tell after a table's networks are trained: noise and its tails, or a width and a temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bali.predictive.family_predictive import FamilyPredictive
from bali.predictive.heaps import heap_factors
from bali.predictive.likelihoods import Likelihood
from bali.predictive.mixtures import ClassPredictive, RegressionPredictive
from bali.training.calibration import Part, fit_temperature
from bali.training.fit_calibration import WIDTHS, likely_width
from bali.training.table_posterior import StackPosterior, TablePosterior, is_gain, learn_row_noise

_DOFS = (3.0, 4.0, 6.0, 10.0, 30.0, 300.0)
_TYPICAL_DOF = 10.0
_LOG_SCALES = torch.linspace(-1.5, 1.0, 51).tolist()  # of the noise's standard deviation
#: Prior standard deviations of the logarithms of scale and degrees of freedom: a few rows do not move them far.
_SCALE_STD, _DOF_STD = 0.5, 1.0
#: Many members have no less than this share of the noise variance that a few have on held-out rows.
_LEAST_SHARE = 0.3
#: Held-out rows: more tell two numbers no better, but the noise of each row is learnt from them.
_MOST_ROWS, _MOST_ROWS_OF_NOISE = 5000, 10_000
#: From more held-out rows on, they can tell in which way rows are to be shown to networks of their noise.
_FEW_ROWS_OF_NOISE = 500
_SAMPLES = 32
#: Rows of which heaps are learnt, and rows that are predicted at once.
_MOST_ROWS_OF_HEAPS, _AT_ONCE = 20_000, 4096


def calibrated(
    stacks: Sequence[StackPosterior],
    likelihoods: Sequence[Likelihood],
    encoded: Sequence[Tensor],  # all rows, as each stack sees them
    y: Tensor,
    weight: Tensor,
    held_out: Tensor,  # (G, n), shares of the rows' weights
    seed: int,
    offset: Tensor | None = None,
    noise_sees: int = 0,
) -> TablePosterior:
    """The mixture of these stacks. Members take turns in holding out the groups. `encoded` may have one way more than there
    are stacks, for networks of the noise of each row: they see that of number `noise_sees`."""
    posterior = TablePosterior(tuple(stacks), tuple(likelihoods), seed, offset=offset)
    groups = _groups(held_out, weight, stacks[0].n_members)
    if posterior.is_regression:
        return _with_noise(posterior, encoded, y, weight, groups, noise_sees)
    return _with_heaps(_with_width(posterior, encoded, y, groups), encoded, y, weight, groups)


class Group(NamedTuple):
    """Rows that some members hold out."""

    rows: Tensor
    weight: Tensor
    members: range

    def some(self, n_groups: int, most: int = _MOST_ROWS) -> Group:
        """Every so many of its rows; the first ones would be no fair sample, as tables come sorted."""
        step = -(-len(self.rows) * n_groups // most)
        return Group(self.rows[::step], self.weight[::step], self.members)


def _groups(held_out: Tensor, weight: Tensor, n_members: int) -> list[Group]:
    found = []
    for number, share in enumerate(held_out):
        rows, members = share.nonzero()[:, 0], range(number, n_members, len(held_out))
        if len(rows) and len(members):
            found.append(Group(rows, weight[rows] * share[rows].to(weight.dtype), members))
    return found


def held_out_predictions(
    posterior: TablePosterior,
    encoded: Sequence[Tensor],
    y: Tensor,
    weight: Tensor,
    held_out: Tensor,
    common: tuple[int, int] | None = None,
) -> list[Part]:
    """Of every so many held-out rows, by the members of a calibrated posterior that hold them out; or of the first groups
    by so many of these members."""
    groups = _groups(held_out, weight, posterior.stacks[0].n_members)
    if common is not None:
        groups = [group._replace(members=group.members[: common[1]]) for group in groups[: common[0]]]
    return _parts(posterior, encoded, y, [group.some(len(groups)) for group in groups])


def in_common(*trained: tuple[TablePosterior, Tensor]) -> tuple[int, int]:
    """Groups, and members that hold out each, of posteriors and what is held out: those that all have. Mixtures of more
    members are more likely whatever they are of."""
    n_groups = min(len(held_out) for _, held_out in trained)
    return n_groups, min(posterior.stacks[0].n_members // len(held_out) for posterior, held_out in trained)


def are_likelier(now: Sequence[Part], before: Sequence[Part], n_errors: float = 1.0) -> bool:
    """Whether the same held-out rows are more likely now, by more than so many standard errors."""
    gains = [a.predictive.log_prob(a.y) - b.predictive.log_prob(b.y) for a, b in zip(now, before, strict=True)]
    return is_gain(torch.cat(gains), torch.cat([part.weight for part in before]), n_errors)


def _parts(posterior: TablePosterior, encoded: Sequence[Tensor], y: Tensor, groups: Sequence[Group]) -> list[Part]:
    return [
        Part(posterior.predictive([x[g.rows] for x in encoded], _SAMPLES, g.members), y[g.rows], g.weight) for g in groups
    ]


def _with_noise(
    posterior: TablePosterior,
    encoded: Sequence[Tensor],
    y: Tensor,
    weight: Tensor,
    groups: Sequence[Group],
    noise_sees: int,
) -> TablePosterior:
    d = y.shape[-1]
    eye = torch.eye(d, dtype=torch.float64, device=y.device)
    if not groups:  # nothing was held out: the residuals of the training rows have to do
        found = replace(posterior, noise=eye).predictive(encoded, 1)
        residual = (y - found.mean).double()
        return replace(posterior, noise=_covariance(residual, weight), noise_dof=_TYPICAL_DOF)
    groups = [group.some(len(groups), _MOST_ROWS_OF_NOISE) for group in groups]
    unit = replace(posterior, noise=1e-6 * eye)
    rows, held_weight = (torch.cat(parts) for parts in ([g.rows for g in groups], [g.weight for g in groups]))
    means = torch.cat([part.predictive.mean for part in _parts(unit, encoded, y, groups)])
    residual = (y[rows] - means).double()
    generator = torch.Generator(device=y.device).manual_seed(posterior.seed)
    ways = dict.fromkeys([noise_sees, *range(len(posterior.stacks))] if len(rows) > _FEW_ROWS_OF_NOISE else [noise_sees])
    seen, scales = [(way, encoded[way][rows]) for way in ways], torch.ones_like(residual)
    tried = [learn_row_noise(x, means, residual.to(x.dtype), held_weight, generator, way) for way, x in seen]
    learnt = max((found for found in tried if found is not None), key=lambda found: found[0].gain, default=None)
    if learnt is not None:
        scales = learnt[1].double()
        residual = residual / scales
    start = replace(posterior, noise=_covariance(residual, held_weight))
    parts = []
    of_groups = torch.split(scales.to(y), [len(g.rows) for g in groups])
    for part, own in zip(_parts(start, encoded, y, groups), of_groups, strict=True):
        assert isinstance(part.predictive, RegressionPredictive)
        parts.append(part._replace(predictive=replace(part.predictive, row_scale=own)))
    scale, dof = _noise_of_many(parts, posterior.n_members)
    assert start.noise is not None
    return replace(start, noise=start.noise * scale**2, noise_dof=dof, row_noise=learnt and learnt[0])


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


# --- counts that are reported more often than others --------------------------------------------------------------------

#: The last count that is looked at is one that so many rows have, and below the second number.
_LEAST_OF_A_COUNT, MOST_COUNTS = 20.0, 40


def _with_heaps(
    posterior: TablePosterior, encoded: Sequence[Tensor], y: Tensor, weight: Tensor, groups: Sequence[Group]
) -> TablePosterior:
    """With factors of single counts, learnt from the rows that all members are trained on, where held-out rows are more
    likely by them."""
    is_trained_on = torch.ones(len(y), dtype=torch.bool, device=y.device)
    for group in groups:
        is_trained_on[group.rows] = False
    rows = is_trained_on.nonzero()[:, 0]
    rows = rows[:: -(-len(rows) // _MOST_ROWS_OF_HEAPS)] if len(rows) else rows
    first = posterior.predictive([x[:1] for x in encoded], 1)
    is_counted = isinstance(first, FamilyPredictive) and first.family.support == "counts"
    if not (is_counted and groups and len(rows)) or y.shape[-1] != 1:
        return posterior
    found, held = weight[rows].double(), y[rows, 0].double()
    observed = torch.stack([found[held == k].sum() for k in range(MOST_COUNTS)])
    often = (observed >= _LEAST_OF_A_COUNT).nonzero()
    if len(often) < 2:
        return posterior
    n_counts = int(often.max()) + 1
    parts = (rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE))
    p = torch.cat([_of_counts(posterior, [x[part] for x in encoded], n_counts) for part in parts])
    heaped = replace(posterior, heaps=heap_factors(p, found, observed[:n_counts]))
    few = [group.some(len(groups)) for group in groups]
    before, after = (_parts(each, encoded, y, few) for each in (posterior, heaped))
    return heaped if are_likelier(after, before, 2.0) else posterior


def _of_counts(posterior: TablePosterior, encoded: Sequence[Tensor], n_counts: int) -> Tensor:
    """Probabilities of 0, 1, …, (n, n_counts)."""
    predictive = posterior.predictive(encoded, _SAMPLES)
    each = torch.arange(n_counts).double().to(encoded[0].device)
    return torch.stack([predictive.log_prob(k.expand(predictive.n_rows)).double().exp() for k in each], 1)
