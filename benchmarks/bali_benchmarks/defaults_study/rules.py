"""What the defaults are and why, in words; the numbers in them are those of the code."""

from __future__ import annotations

from collections.abc import Iterable

from bali.estimators import BALIRegressor, defaults
from bali.estimators.encodings import N_WAVES
from bali.estimators.input_scaling import HEAVY_TAILS
from bali.estimators.near_rows import FEW
from bali.estimators.near_rows import MANY as MANY_NEAR
from bali.training.table_calibration import MOST_COUNTS
from bali.training.table_posterior import MEMBERS as NOISE_MEMBERS
from bali.training.table_posterior import WIDTH as NOISE_WIDTH
from bali_benchmarks.reproduce.markdown import wrapped

# Rows and columns on either side of each threshold of `bali.estimators.defaults`.
COLUMNS, MANY, SMALL = 10, defaults.MANY_COLUMNS, 1000
WIDER_FROM, SHARED_FROM = defaults.MORE_ROWS, defaults.MANY_ROWS


def rules() -> list[str]:
    """Paragraphs of the page."""
    paragraphs = (
        _network(),
        _inputs(),
        _encodings(),
        _course(),
        _members(),
        _targets(),
        _noise(),
        _calibration(),
        _classes(),
    )
    lines: list[str] = []
    for name, text in paragraphs:
        lines += ["", wrapped(f"**{name}.** {text}")]
    return lines[1:]


def _network() -> tuple[str, str]:
    plain, wider, widest = (
        defaults.hidden_layer_sizes(*size)[0] for size in ((SMALL, COLUMNS), (WIDER_FROM, COLUMNS), (SMALL, MANY))
    )
    model = BALIRegressor()
    return "Network", (
        f"Two hidden layers of {plain} units with the activation {model.activation!r}; {wider} units from "
        f"{WIDER_FROM:,} rows on, as there is more to learn from, and {widest} where there are at least {MANY} columns. The "
        f"prior variance of a weight is {model.prior_variance:g} over the number of weights that its output is a sum of."
    )


def _inputs() -> tuple[str, str]:
    return "Inputs", (
        "Every column is brought to mean 0 and variance 1. Where a column's excess kurtosis is above "
        f"{HEAVY_TAILS:g}, it is bent by Yeo and Johnson's power transformation before that, with the power after which a "
        "normal distribution makes its values most likely: a few very large values would leave all others crowded together, "
        f"and pull the fit. Where {MANY} columns or more have one common range, they are pixels and share one scale."
    )


def _encodings() -> tuple[str, str]:
    few, more = (_listed(defaults.bins(n, COLUMNS)) for n in (SMALL, WIDER_FROM))
    return "What is tried", (
        f"Ways to show the columns to networks are tried side by side: with {few} bins of each ({more} from "
        f"{WIDER_FROM:,} rows on), but {defaults.ROWS_PER_BIN} rows a bin at least and {defaults.MOST_BINS} bins in all, "
        "beside the column itself. A bin has a slope of its own, so that networks find steps and peaks. Where bins "
        f"are tried, waves are, too: sines and cosines of a column's place among the training rows, {N_WAVES} of each. Up "
        f"to {defaults.MOST_NEAR:,} rows (of classes from {defaults.LEAST_NEAR:,} on), "
        "also the columns beside what near rows say: averages of "
        f"the targets of the {FEW} and the {MANY_NEAR} nearest training rows, how these differ, and how near the nearest "
        "one is, in a metric that has a scale of its own for every column, learnt from the training rows; no row sees its "
        "own target. Besides, a linear "
        f"model; and up to {defaults.FEW_COLUMNS} columns {defaults.prior_factors(1)[-1]:g} times the prior variance, as "
        "functions of few variables can be rough and still be learnt. What is clearly behind on the held-out rows, by two "
        "standard errors between members, stops early; what cannot be told from the best at the end, by one, is mixed with "
        f"it. With {MANY} columns or more there are neither bins, waves nor near rows: one column alone says little there."
    )


def _course() -> tuple[str, str]:
    small, large = (defaults.course(n) for n in (SMALL, WIDER_FROM))
    return "Course", (
        f"{small.n_steps:,} steps for {SMALL:,} rows, otherwise in proportion to the cube root of their number, but "
        f"{defaults.LEAST_STEPS} at least; {small.batch_size} rows a step, {large.batch_size} from {WIDER_FROM:,} rows on. "
        f"Steps shrink along half a cosine wave. A step moves each layer by {small.step_size:g} over the number of layers, "
        f"in units of each output's root-mean-square gradient, but never the predictions by more than {small.kl_bound:g} "
        f"nats a row. Averages of the means are scored {small.n_scores} times, and each member keeps its best."
    )


def _members() -> tuple[str, str]:
    small, large, many = (defaults.members(n) for n in (SMALL, WIDER_FROM, SHARED_FROM))
    share = defaults.held_out_share(SMALL)
    return "Members", (
        f"For each way {small} independently started networks, {large} from {WIDER_FROM:,} rows on and {many} from "
        f"{SHARED_FROM:,}: small tables gain most from a mixture, and it costs them least. They are trained as one batch. "
        f"Two and two hold out the same {100 * share:g} % of the rows, other pairs other rows, so that few rows are not "
        f"lost to all; from {SHARED_FROM:,} rows on all of them hold out the same, at most {defaults.MOST_HELD_OUT:,}."
    )


def _noise() -> tuple[str, str]:
    return "Noise", (
        "Means are learnt first, as with one noise for all rows. Then the residuals of held-out rows, by members that did "
        f"not train on them, are the targets of {NOISE_MEMBERS} small networks of {NOISE_WIDTH} units that learn the "
        "logarithm of their scale from the columns, what near rows say, and the predicted mean. They have held-out "
        "residuals of their own, which tell what share of these logarithms is to be believed: where none makes them more "
        "likely than one scale for all rows, by a standard error, the noise is the same in every row. Otherwise rows count "
        f"by their precision from then on. From {WIDER_FROM:,} rows on, what was kept is learnt anew by "
        f"{defaults.MEMBERS_BY_PRECISION} members of each way, each row weighted by the root of its precision: two and two "
        "hold out the same rows here, too, so that noise is learnt from up to half of all rows. Then networks go on from "
        "their means for half as many steps, each row weighted by its precision. Either is kept where held-out rows are "
        "more likely by it, by a standard error."
    )


def _targets() -> tuple[str, str]:
    return "Targets", (
        "Numbers that are all positive, and nearer to symmetry in logarithms, are learnt twice: as they are, and by their "
        "logarithms, in the ways of seeing the columns that were kept. Predictions are of logarithms, or "
        "mix both, where held-out rows are more likely by it and means no further off. Logarithms have no "
        "width beyond that of all targets', "
        "and no mean beyond five such widths, as exp of what a network says far from all rows would be beyond all numbers."
    )


def _calibration() -> tuple[str, str]:
    return "Calibration", (
        "A factor of the noise and the degrees of freedom of its Student-t make the held-out rows most likely, each with "
        "the scale by the network that did not see its residual. A pair of "
        "members errs more than the mixture of all: how the factor falls from one member to a pair tells what it will be "
        "for all of them. Far from the rows a prediction is wider, by the spread of the members and by the exact posterior "
        "of each one's output layer."
    )


def _classes() -> tuple[str, str]:
    return "Classes, counts, durations", (
        "Weights of all layers are sampled, from the posterior that the curvature of the likelihood gives. Its width is "
        "nearly the largest that held-out rows cannot tell from the best; class probabilities are then raised to the power "
        f"that makes these rows most likely. Counts below {MOST_COUNTS} have factors with which training rows expect as "
        "many of each as there are, where held-out rows are more likely by them, by two standard errors."
    )


def rules_for(n_rows: int, n_columns: int) -> list[str]:
    """The cells of a table: what the rules give for a regression of this size."""
    course = defaults.course(n_rows)
    return [
        f"{n_rows:,}",
        f"{n_columns}",
        _listed(defaults.hidden_layer_sizes(n_rows, n_columns)),
        f"{defaults.members(n_rows)}",
        _listed(defaults.bins(n_rows, n_columns)),
        f"{course.n_steps:,}",
        f"{course.batch_size}",
    ]


HEADER = ("rows", "columns", "hidden layers", "members of a way", "bins", "steps", "rows of a step")


def _listed(values: Iterable[float | str]) -> str:
    *first, last = [value if isinstance(value, str) else f"{value:g}" for value in values]
    return f"{', '.join(first)} and {last}" if first else last
