"""Further training of a regression whose rows have noises of their own: each row counts by its precision.

Means are learnt first with one noise for all rows, and the noise of each from what they leave. Rows of little noise then say
more about the mean than the first training knew. Networks go on from where they ended, for half as many steps.

Where the first training had few groups of held-out rows, as of large tables, networks first begin anew, with more members
in more groups: noise by row is learnt from held-out rows alone, and only ways of seeing the table that were kept are trained
again. Rows count by the root of their precision then: whoever sees little of the rows with much noise from the start errs
more.

What comes of either is kept where held-out rows are more likely by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bali.training.table_calibration import are_likelier, held_out_predictions, in_common
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
    """What comes of it where that is better, and otherwise the first. `groups` are of rows that members hold out now,
    (G, n): those of the first training, or these and more, for which networks begin anew."""
    posterior, encoded, found, held_out = first
    scale = torch.cat([_scales(posterior, [x[at : at + _AT_ONCE] for x in encoded]) for at in range(0, len(y), _AT_ONCE)])
    is_anew = len(groups) > len(held_out)
    precision = scale.clamp_min(_LEAST_SCALE * scale.median()).pow(-1 if is_anew else -2).to(weight)
    precision *= weight.sum() / (weight * precision).sum()
    again = [replace(candidates[i], start=None) for i in found.kept]
    if not is_anew:
        again = [
            replace(c, start=[m.clone() for m in course.best], rules=replace(c.rules, n_steps=-(-c.rules.n_steps // 2)))
            for c, course in zip(again, found.courses, strict=True)
        ]
    try:
        second = train(again, weight * precision, groups)
    except KeyboardInterrupt:  # before it knew anything
        return first._replace(found=replace(found, outcome="interrupted"))
    found = replace(found, outcome=second.outcome, n_steps=found.n_steps + second.n_steps)
    kept = [found.kept[i] for i in second.kept]
    courses = second.courses if is_anew else [found.courses[i] for i in second.kept]
    now = replace(found, kept=kept, courses=courses, posteriors=second.posteriors)
    later, seen = calibrate(now, groups)
    common = in_common((posterior, held_out), (later, groups))
    before = held_out_predictions(posterior, encoded, y, weight, held_out, common)
    after = held_out_predictions(later, seen, y, weight, groups, common)
    if not are_likelier(after, before):
        return first._replace(found=found)
    return Trained(replace(later, by_precision=True), seen, now, groups)


def _scales(posterior: TablePosterior, encoded: Sequence[Tensor]) -> Tensor:
    """Of the noise of each row, a mean over the columns of y."""
    rows = posterior.row_noise
    assert rows is not None
    means = posterior.predictive(encoded, 1).mean
    return rows(encoded[rows.sees], means).log().mean(-1).exp()
