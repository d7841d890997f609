"""A second training of a regression whose rows have noises of their own: each row counts by its precision.

Means are learnt first with one noise for all rows, and the noise of each from what they leave. Rows of little noise then say
more about the mean than the first training knew. The second one goes on from where the first ended, for half as many
steps. Where the first one had few groups of held-out rows, as of large tables, it begins anew with more members in more
groups: noise by row is learnt from held-out rows alone, and only ways of seeing the table that were kept are trained again.
What it finds is kept where held-out rows are more likely by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bali.training.table_calibration import are_likelier, held_out_predictions
from bali.training.table_fit import Candidate, TableFit
from bali.training.table_posterior import TablePosterior

#: No row counts as if its noise were below this share of the middle one's.
_LEAST_SCALE = 0.05
_AT_ONCE = 4096


class Trained(NamedTuple):
    """What a training comes to."""

    posterior: TablePosterior
    encoded: list[Tensor]  # rows as it sees them
    found: TableFit
    held_out: Tensor  # (G, n), shares of the rows' weights


def trained_by_precision(
    first: Trained,
    candidates: Sequence[Candidate],
    y: Tensor,
    weight: Tensor,
    groups: Tensor,
    train: Callable[[list[Candidate], Tensor, Tensor], TableFit],
    calibrate: Callable[[TableFit, Tensor], tuple[TablePosterior, list[Tensor]]],
) -> Trained:
    """The second training where it is better, and otherwise the first. `groups` are of rows that the second one's members
    hold out, (G, n): those of the first, or these and more."""
    posterior, encoded, found, held_out = first
    scale = torch.cat([_scales(posterior, [x[at : at + _AT_ONCE] for x in encoded]) for at in range(0, len(y), _AT_ONCE)])
    precision = scale.clamp_min(_LEAST_SCALE * scale.median()).pow(-2).to(weight)
    precision *= weight.sum() / (weight * precision).sum()
    again = [candidates[i] for i in found.kept]
    if len(groups) == len(held_out):
        again = [
            replace(c, start=[m.clone() for m in course.best], rules=replace(c.rules, n_steps=-(-c.rules.n_steps // 2)))
            for c, course in zip(again, found.courses, strict=True)
        ]
    try:
        second = train(again, weight * precision, groups)
    except KeyboardInterrupt:  # before it knew anything
        return first._replace(found=replace(found, outcome="interrupted"))
    now = replace(
        found,
        kept=[found.kept[i] for i in second.kept],
        courses=[found.courses[i] for i in second.kept],
        posteriors=second.posteriors,
        outcome=second.outcome,
    )
    later, seen = calibrate(now, groups)
    before = held_out_predictions(posterior, encoded, y, weight, held_out)
    after = held_out_predictions(later, seen, y, weight, groups, len(held_out))
    if not are_likelier(after, before):
        return first._replace(found=replace(found, outcome=second.outcome))
    return Trained(replace(later, by_precision=True), seen, now, groups)


def _scales(posterior: TablePosterior, encoded: Sequence[Tensor]) -> Tensor:
    """Of the noise of each row, a mean over the columns of y."""
    rows = posterior.row_noise
    assert rows is not None
    means = posterior.predictive(encoded, 1).mean
    return rows(encoded[rows.sees], means).log().mean(-1).exp()
