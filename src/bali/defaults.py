"""How the estimators set their hyperparameters from the size of a table. docs/defaults.md has the measurements."""

from __future__ import annotations

#: From so many columns on, a table is treated like images: wide layers, one prior, few members.
MANY_COLUMNS = 100


def hidden_layer_sizes(n_rows: float, n_columns: int) -> tuple[int, ...]:
    """Two hidden layers, wider where there are rows enough to learn more."""
    if n_columns >= MANY_COLUMNS and n_rows >= 10_000:
        return (256, 256)
    return (100, 100) if n_rows >= 20_000 else (50, 50)


def prior_variances(n_columns: int, *, classes: bool) -> tuple[float, ...]:
    """The candidates: a smooth and a flexible prior.

    Functions of few variables are often rough in them, and can be learned to be so; in many, they cannot. The paper has
    20 to 40 for tables, 10 for images, and 400 to 6,400 for functions of one and two variables.
    """
    if n_columns >= MANY_COLUMNS:
        return (10.0,)
    if n_columns <= 3:
        return (40.0, 4000.0)
    return (1.0, 10.0) if classes else (1.0, 40.0)


def initial_variance(prior_variance: float) -> float:
    """Of the weights that training starts from, in units of `unit_variances`: a rough function is found from a rough one.

    The paper has 1 for a prior variance of 40 and 9 for 6,400.
    """
    return max(1.0, (prior_variance / 40.0) ** 0.5)


def effective_size(n_rows: float) -> float:
    """N_eff: all rows of a small table; beyond 2,000, growing with the root of their number."""
    return n_rows if n_rows <= 2000 else (2000 * n_rows) ** 0.5


def class_effective_size(n_rows: float) -> float:
    """N_eff of a classification, where a class says less than a number: fewer observations, so wider posteriors."""
    return min(n_rows, max(400.0, 0.8 * n_rows**0.75))


def ema_rate(n_rows: float, batch_size: float) -> float:
    """β at the start of training: averages of the whole table need less memory than those of mini-batches."""
    return 0.5 if n_rows <= batch_size else 0.3


def steps(n_rows: float) -> int:
    """At most so many: small tables can be fitted closely, which takes long, and their steps are cheap."""
    return 2500 if n_rows <= 1000 else 1000


def shares_held_out_rows(n_rows: float) -> bool:
    """Whether all members of a classification hold out the same rows: a mixture is less sure than any of its members, so
    where rows are many, its own temperature is fitted. Few rows are better used by some of the members."""
    return n_rows >= 10_000


#: β of `partial_fit`, whose batches may be small.
STREAM_RATE = 0.2


def members(n_rows: float, n_columns: int) -> int:
    """How many posteriors to mix, for each candidate: small tables gain most from a mixture, and it costs them least."""
    if n_columns >= MANY_COLUMNS:
        return 3
    return 10 if n_rows <= 1000 else 5
