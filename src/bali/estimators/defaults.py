"""How the estimators set their hyperparameters from the size of a table. docs/defaults.md has the measurements."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import NamedTuple

from bali.inference.health import HealthWarning
from bali.training.plan import Plan

#: With fewer distinct rows, what is held out is a row or two.
FEW_ROWS = 10
#: From so many columns and rows on, a table is treated like images: wide layers, one prior, few members.
MANY_COLUMNS, MANY_ROWS = 100, 10_000
#: Up to so many rows a table is small.
SMALL = 1000
#: Functions of so few variables can be rough and still be learnt.
FEW_COLUMNS = 3
#: With fewer rows a column than this, one of the candidates of a regression is linear.
ROWS_PER_COLUMN = 10


def warn_of_few_rows(n_distinct: int) -> None:
    if n_distinct < FEW_ROWS:
        warnings.warn(
            f"fitted to {n_distinct} distinct row{'' if n_distinct == 1 else 's'}: so few can tell neither how good the "
            "predictions are nor how far off they may be",
            HealthWarning,
            stacklevel=4,
        )


def like_images(n_rows: float, n_columns: int, *, classes: bool = False) -> bool:
    """Many columns with classes are, also where rows are few."""
    return n_columns >= MANY_COLUMNS and (classes or n_rows >= MANY_ROWS)


def hidden_layer_sizes(n_rows: float, n_columns: int) -> tuple[int, ...]:
    """Two hidden layers, wider where there are rows enough to learn more."""
    if like_images(n_rows, n_columns):
        return (256, 256)
    return (100, 100) if n_rows >= 20_000 else (50, 50)


class Candidate(NamedTuple):
    """A prior of which data show whether it is a good one."""

    variance: float
    linear: bool = False  # no activations: a linear model


def candidates(n_rows: float, n_columns: int, *, classes: bool) -> tuple[Candidate, ...]:
    """A smooth and a flexible prior, from the strongest to the weakest.

    Functions of few variables are often rough in them, and can be learned to be so; in many, they cannot. The paper has
    20 to 40 for tables, 10 for images, and 400 to 6,400 for functions of one and two variables. Where the rows of a
    regression are few for its columns, bends can hardly be told from noise: there, lines are a third candidate.
    """
    if like_images(n_rows, n_columns, classes=classes):
        return (Candidate(10.0),)
    if n_columns <= FEW_COLUMNS:
        return Candidate(40.0), Candidate(4000.0)
    if classes:
        return Candidate(1.0), Candidate(10.0)
    lines = [Candidate(3.0, linear=True)] if n_rows < ROWS_PER_COLUMN * n_columns else []
    return (*lines, Candidate(1.0), Candidate(40.0))


def first_variance(n_rows: float, n_columns: int, *, classes: bool) -> float:
    """Of a weight of the first layer that stands for 1: its outputs spread like those of nine unit-variance columns and a
    bias, whatever the number of columns, and like those of one for images."""
    return (1.0 if like_images(n_rows, n_columns, classes=classes) else 10.0) / (n_columns + 1)


def prior_widening(n_rows: float, n_columns: int, *, classes: bool) -> float:
    """How many times wider the prior is in predictions of classes than in training, where it is a damping too.

    In the first layer of tables like images: pixels that were blank in every image say nothing of their weights, which can
    then be anything, so that images of another kind, which have them, are noticed. In all layers where columns are few: away
    from the rows, hidden units do what no row has shown them to do. Held-out rows cannot tell either factor.
    """
    if not classes:
        return 1.0
    if like_images(n_rows, n_columns, classes=True):
        return 100.0
    return 1000.0 if n_columns <= FEW_COLUMNS else 1.0


def initial_variance(prior_variance: float) -> float:
    """Of the weights that training starts from, in units of `unit_variances`: a rough function is found from a rough one.

    The paper has 1 for a prior variance of 40 and 9 for 6,400.
    """
    return max(1.0, (prior_variance / 40.0) ** 0.5)


def effective_size(n_rows: float, *, classes: bool = False) -> float:
    """N_eff: all rows of a small table; beyond 2,000, growing with the root of their number. A class says less than a
    number: fewer observations, so wider posteriors."""
    if classes:
        return min(n_rows, max(400.0, 0.8 * n_rows**0.75))
    return n_rows if n_rows <= 2000 else (2000 * n_rows) ** 0.5


def ema_rate(n_rows: float, batch_size: float) -> float:
    """β at the start of training: averages of the whole table need less memory than those of mini-batches."""
    return 0.5 if n_rows <= batch_size else 0.3


#: Courses of a training: phases with steps that get smaller, without and with momentum and averaged means.
_PLAIN = Plan(1000, phase_ends=(0.5, 0.7, 0.85), decay=0.3, patience=10)
_AVERAGED = Plan(
    1000, phase_ends=(0.5, 0.66, 0.76, 0.85, 0.93), decay=0.5, patience=10, momentum=0.5, averaging=0.1, warm_up=0.1
)


def plan(n_rows: float, n_columns: int, batch_size: int, *, classes: bool, n_distinct: int | None = None) -> Plan:
    """Small tables can be fitted closely, which takes long, and their steps are cheap.

    Momentum and averaged means learn about twice as fast; many rows of classes gain nothing by them, and rough functions of
    few columns are fitted less closely. The averages of small tables, which are taken in whole, hardly waver, so that a
    phase can end soon after they stop to gain.

    `n_rows` may count rows several times; `n_distinct` of them are gone through.
    """
    small = n_rows <= SMALL
    is_plain = not small if classes else n_columns <= FEW_COLUMNS
    if is_plain:
        course = replace(_PLAIN, max_steps=2500) if small else _PLAIN
    else:
        course = replace(_AVERAGED, max_steps=2000, patience=3) if small else _AVERAGED
    n = n_rows if n_distinct is None else n_distinct
    # Few rows need more samples for a check, and can have them.
    return replace(course, batch_size=batch_size, ema_rate=ema_rate(n, batch_size), n_samples=32 if n <= 2000 else 8)


def shares_held_out_rows(n_rows: float) -> bool:
    """Whether all members of a classification hold out the same rows: a mixture is less sure than any of its members, so
    where rows are many, its own temperature is fitted. Few rows are better used by some of the members."""
    return n_rows >= MANY_ROWS


#: β of `partial_fit`, whose batches may be small.
STREAM_RATE = 0.2


def members(n_rows: float, n_columns: int, *, classes: bool = False) -> int:
    """How many posteriors to mix, for each candidate: small tables gain most from a mixture, and it costs them least."""
    if like_images(n_rows, n_columns, classes=classes):
        return 3
    return 10 if n_rows <= SMALL else 5
