"""How the estimators set their hyperparameters from the size of a table. docs/defaults.md has the measurements."""

from __future__ import annotations

import warnings

from bali.inference.health import HealthWarning
from bali.training.stack_course import CourseRules

#: With fewer distinct rows, what is held out is a row or two.
FEW_ROWS = 10
#: From so many columns on, columns are like pixels: one alone says little, and bins of each would be thousands of inputs.
MANY_COLUMNS = 100
#: Rows that a bin should have at least, bins of all columns together at most, and those below which they are not tried.
ROWS_PER_BIN, MOST_BINS, LEAST_BINS = 10, 320, 4
#: Rows among which some are near to others; from the larger number on, looking for them costs more than learning.
LEAST_NEAR, MOST_NEAR = 1000, 50_000
#: Targets, or classes, that near rows' averages are shown of.
MOST_NEAR_TARGETS = 10
#: So few columns are few.
FEW_COLUMNS = 3
#: From so many rows on, there is more to learn than a small network can.
MORE_ROWS = 5000
#: From so many rows on, rows for training are not scarce: all members hold out the same ones.
MANY_ROWS = 10_000
#: Of a course: members that have seen few rows often still differ by how they began.
LEAST_STEPS = 500
#: Of the rows that members share.
MOST_HELD_OUT = 5000


def warn_of_few_rows(n_distinct: int) -> None:
    if n_distinct < FEW_ROWS:
        warnings.warn(
            f"fitted to {n_distinct} distinct row{'' if n_distinct == 1 else 's'}: so few can tell neither how good the "
            "predictions are nor how far off they may be",
            HealthWarning,
            stacklevel=4,
        )


def hidden_layer_sizes(n_rows: int, n_columns: int) -> tuple[int, ...]:
    """Two hidden layers, wider where there is more to learn from."""
    if n_columns >= MANY_COLUMNS:
        return (256, 256)
    return (64, 64) if n_rows < MORE_ROWS else (128, 128)


def bins(n_rows: int, n_columns: int) -> tuple[int, ...]:
    """Encodings to try, by the number of a column's bins. A bin needs rows to tell its slope, and all bins together cost a
    step its time."""
    most = 16 if n_rows < MORE_ROWS else 32
    found = min(most, n_rows // ROWS_PER_BIN, MOST_BINS // n_columns)
    return (0,) if n_columns >= MANY_COLUMNS or found < LEAST_BINS else (0, found)


def tries_near_rows(n_rows: int, n_columns: int, n_outputs: int) -> bool:
    """Whether what near rows say is a way of seeing the table that is tried."""
    return LEAST_NEAR <= n_rows <= MOST_NEAR and n_columns < MANY_COLUMNS and n_outputs <= MOST_NEAR_TARGETS


def prior_factors(n_columns: int) -> tuple[float, ...]:
    """Times which the prior variance is tried: functions of few variables can be rough and still be learnt."""
    return (1.0, 100.0) if n_columns <= FEW_COLUMNS else (1.0,)


def groups(n_rows: int) -> int:
    """Of held-out rows. Few rows are better used by some of the members than by none."""
    return 1 if n_rows >= MANY_ROWS else members(n_rows) // 2


def held_out_share(n_rows: int) -> float:
    """Of the rows, in each group."""
    return min(0.1, MOST_HELD_OUT / n_rows)


def members(n_rows: int) -> int:
    """Of each candidate. Small tables gain most from a mixture, and it costs them least."""
    if n_rows >= MANY_ROWS:
        return 4
    return 10 if n_rows < MORE_ROWS else 6


def course(n_rows: int) -> CourseRules:
    """More rows tell more, which takes longer to learn, but ever less."""
    n_steps = max(LEAST_STEPS, round(1000 * (n_rows / 1000) ** (1 / 3)))
    return CourseRules(n_steps=n_steps, batch_size=128 if n_rows < MORE_ROWS else 256)
