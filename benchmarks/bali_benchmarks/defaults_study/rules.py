"""What the defaults are and why, in words; the numbers in them are those of the code."""

from __future__ import annotations

from collections.abc import Iterable

from bali.estimators import BALIRegressor, defaults
from bali.estimators.input_scaling import HEAVY_TAILS
from bali.training.calibration import LEAST_DOF, MOST_DOF
from bali.training.folds import MAX_HELD_OUT, MAX_SHARED
from bali.training.plan import Plan
from bali_benchmarks.reproduce.markdown import wrapped

# Rows and columns on either side of each threshold of `bali.estimators.defaults`.
FEW_COLUMNS, COLUMNS, MANY = defaults.FEW_COLUMNS, 10, defaults.MANY_COLUMNS
SMALL, WIDER_FROM, WIDEST_FROM, ALL_COUNT_TO = defaults.SMALL, 20_000, defaults.MANY_ROWS, 2000
LEAST_CLASS_SIZE, SHARED_FROM = 400, defaults.MANY_ROWS


def rules() -> list[str]:
    """Paragraphs of the page."""
    paragraphs = (
        _network(),
        _inputs(),
        _prior(),
        _widening(),
        _effective_size(),
        _schedule(),
        _members(),
        _calibration(),
        _constants(),
    )
    lines: list[str] = []
    for name, text in paragraphs:
        lines += ["", wrapped(f"**{name}.** {text}")]
    return lines[1:]


def _network() -> tuple[str, str]:
    plain, wider, widest = (
        defaults.hidden_layer_sizes(*size)[0] for size in ((SMALL, COLUMNS), (WIDER_FROM, COLUMNS), (WIDEST_FROM, MANY))
    )
    return "Network", (
        f"Two hidden layers of {plain} units with the activation {BALIRegressor().activation!r}; {wider} units from "
        f"{WIDER_FROM:,} rows on, and {widest} where there are at least {MANY} columns and {WIDEST_FROM:,} rows: more is "
        "learnt where there are rows enough to learn it from."
    )


def _inputs() -> tuple[str, str]:
    return "Inputs", (
        "Every column is brought to mean 0 and variance 1. Where a column's excess kurtosis is above "
        f"{HEAVY_TAILS:g}, it is bent by Yeo and Johnson's power transformation before that, with the power after which a "
        "normal distribution makes its values most likely: a few very large values would leave all others crowded together, "
        "and pull the fit. The weights of the first layer are scaled so that the spread of its outputs does not depend on "
        f"the number of columns. Tables like images, of {MANY} columns or more (and of {WIDEST_FROM:,} rows in a "
        "regression), have a tenth of that variance; where their columns have one common range, they are "
        "pixels and share one scale."
    )


def _widening() -> tuple[str, str]:
    images, few = (defaults.prior_widening(WIDEST_FROM, columns, classes=True) for columns in (MANY, FEW_COLUMNS))
    return "A wider prior in predictions", (
        "In training, a prior is a damping too, which is no reason to be sure of weights of which no row has told anything. "
        f"Predictions of classes of tables like images have {images:g} times the prior variance in the first "
        "layer that training has: pixels that were blank in all images say nothing of their "
        "weights. Held-out rows cannot tell this factor. It is the smallest power of ten with which digits are told from "
        "clothes by entropy as well as by mutual information, on training images of both; the paper's prior variance, which "
        "does not fall with the number of pixels, is wider still. Predictions of classes from up to "
        f"{FEW_COLUMNS} columns have {few:,.0f} times the prior variance in all layers: near the rows they stay what they "
        "are, and away from them they are less sure, as they should be."
    )


def _prior() -> tuple[str, str]:
    usual, classes = (_priors(SMALL, COLUMNS, classes=classes) for classes in (False, True))
    few, many = _priors(SMALL, FEW_COLUMNS), _priors(WIDEST_FROM, MANY)
    return "Prior variance σ_r²", (
        "No single strength of the prior serves all tables, and held-out rows can tell which does. Candidates are a smooth "
        f"and a flexible prior, {usual} ({classes} for classes): they are trained side by side as members of one batch. At "
        "the end of every phase of the training those are dropped that are worse than the best by more than a standard "
        "error of the row-by-row difference; those that are left are mixed. Functions of few variables can be rough and "
        f"still be learnt, so up to {FEW_COLUMNS} columns the candidates are {few}. With fewer than "
        f"{defaults.ROWS_PER_COLUMN} rows a column, bends can hardly be told from noise: a linear model is a third "
        f"candidate of a regression there. For tables like images there is only {many}. "
        "Weights start from a variance that grows with the root of σ_r²: rough functions are found from there."
    )


def _priors(n_rows: int, n_columns: int, *, classes: bool = False) -> str:
    own = defaults.candidates(n_rows, n_columns, classes=classes)
    return _listed([f"{c.variance:g}{' (linear)' * c.linear}" for c in own])


def _effective_size() -> tuple[str, str]:
    return "Effective size N_eff", (
        f"All rows of a table up to {ALL_COUNT_TO:,}, then √({ALL_COUNT_TO} n). A class says less than a number: there it "
        f"is 0.8·n^¾, but at least {LEAST_CLASS_SIZE} (or all rows, where there are fewer)."
    )


def _schedule() -> tuple[str, str]:
    model = BALIRegressor()
    whole, batches = (defaults.ema_rate(n, model.batch_size) for n in (model.batch_size, model.batch_size + 1))
    plain, small, large = (
        defaults.plan(n, columns, model.batch_size, classes=False)
        for n, columns in ((SMALL, FEW_COLUMNS), (SMALL, COLUMNS), (SMALL + 1, COLUMNS))
    )
    return "Step size α, averaging rate β and their schedule", (
        f"Training starts with α = {model.step_size:g} and β = {whole:g} ({batches:g} where a table has more than the "
        f"{model.batch_size:,} rows of a batch, whose averages need more memory) and has phases. From one to the next both "
        f"are multiplied by {small.decay:g}, and each candidate goes on from where it scored best: a step is also a noise "
        f"on the targets, and so on the weights. A phase ends when no candidate has gained {Plan.tolerance:g} nats on "
        f"held-out rows in {large.patience} checks ({small.patience} for up to {SMALL:,} rows), and in any case "
        f"after {_ends(small)} % of the steps ({small.max_steps:,} up to {SMALL:,} rows, {large.max_steps:,} for more), "
        "so that there is always time for small steps. Not the means of the last step are scored, kept and "
        "predicted from, but their moving averages "
        f"with a rate of {small.averaging:g}, which show what large steps have learnt beneath the noise that they make. The "
        f"means have a momentum of {small.momentum:g}: after a step they go on by this share of their last movement, less "
        "where β is so large that both together would be more than a whole step. α grows from nothing during the first "
        f"{100 * small.warm_up:g} % of the steps: where it becomes too large for a table, scores stop growing, the phase "
        "ends, and the next one goes on from the best point before. Regressions of up to "
        f"{FEW_COLUMNS} columns, which are fitted less closely with momentum, and classes of more than {SMALL:,} rows, "
        "which gain nothing by it, "
        f"have neither of these, and phases of another kind: {len(plain.phase_ends) + 1} with a factor of {plain.decay:g}, "
        f"which end after {plain.patience} checks without a gain or after {_ends(plain)} % of the steps "
        f"({plain.max_steps:,} up to {SMALL:,} rows)."
    )


def _ends(plan: Plan) -> str:
    return _listed([100 * share for share in plan.phase_ends])


def _members() -> tuple[str, str]:
    small, large, many = (
        defaults.members(*size) for size in ((SMALL, COLUMNS), (SMALL + 1, COLUMNS), (defaults.MANY_ROWS, MANY))
    )
    share = BALIRegressor().validation_fraction
    return "Members", (
        f"For each candidate {small} independently started posteriors up to {SMALL:,} rows, {large} for more, and "
        f"{many} for images: small tables gain most from a mixture, and it costs them least. They are trained "
        f"as one batch. Each holds out other rows, a share of {share:g} of the table and at most {MAX_HELD_OUT:,}, so that "
        f"between them they see every row. In a classification of {SHARED_FROM:,} rows or more, all hold out the same, at "
        f"most {MAX_SHARED:,}: a mixture is less sure than its members, so it is the mixture whose temperature should be "
        "fitted, and there are rows enough."
    )


def _calibration() -> tuple[str, str]:
    return "Calibration", (
        "The noise that inference finds is that of the training rows: too small where the network fits them too closely, "
        "too large where the spread of the weights is in it already. After training, every held-out row is predicted by the "
        "members that did not train on it, and two numbers are fitted to these rows with a weak prior: a factor on the "
        f"noise's variance, and the degrees of freedom of its Student-t, {LEAST_DOF:g} to {MOST_DOF:g}. In a classification "
        "it is one number, the temperature of the class probabilities. Candidates are compared after this correction, so "
        "none is blamed for its own noise."
    )


def _constants() -> tuple[str, str]:
    model = BALIRegressor()
    return "What is the same for all tables", (
        f"The least variance of the noise, {model.noise_floor:g} for hidden layers and {model.output_noise_floor:g} of the "
        "targets' variance for the output; targets without sampling noise."
    )


def rules_for(n_rows: int, n_columns: int) -> list[str]:
    """The cells of a table: what the rules give for a regression of this size."""
    return [
        f"{n_rows:,}",
        f"{n_columns}",
        _listed(defaults.hidden_layer_sizes(n_rows, n_columns)),
        f"{defaults.members(n_rows, n_columns)}",
        _priors(n_rows, n_columns),
        f"{defaults.effective_size(n_rows):,.0f}",
        f"{defaults.ema_rate(n_rows, BALIRegressor().batch_size):g}",
    ]


HEADER = ("rows", "columns", "hidden layers", "members of a candidate", "candidates σ_r²", "N_eff", "β")


def _listed(values: Iterable[float | str]) -> str:
    *first, last = [value if isinstance(value, str) else f"{value:g}" for value in values]
    return f"{', '.join(first)} and {last}" if first else last
