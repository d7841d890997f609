"""The synthetic sets on the page. The paper has pictures of them and no figures, so the verdicts are on what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bali_benchmarks.reproduce.job import Line
from bali_benchmarks.reproduce.markdown import EMPTY, table, wrapped, yes_or_no
from bali_benchmarks.reproduce.synthetic import image_name

Rows = Mapping[str, Sequence[Line]]

#: Bayes by backprop underfits where its error on the training rows is so many times BALI's.
UNDERFITS = 1.5
#: And is overconfident where it is so many times as sure as BALI away from the data.
OVERCONFIDENT = 2.0


def _error(line: Line) -> float:
    """On the training rows: the root mean squared error, or the share of wrong classes."""
    return float(line["fit_train"]) if line["task"] == "regression" else 1.0 - float(line["fit_train"])


def underfits(line: Line, bali: Line) -> bool:
    return _error(line) > UNDERFITS * _error(bali)


def is_overconfident(line: Line, bali: Line) -> bool:
    return bool(line["std_outside"] * OVERCONFIDENT < bali["std_outside"])


def _scores(line: Line) -> list[str]:
    keys = ("fit_train", "fit_test", "log_likelihood_test", "calibration_test", "std_inside", "std_outside")
    return [f"{line[key]:.3f}" for key in keys]


_HEADER = ["fit, training", "fit, new rows", "log-likelihood", "calibration", "std inside", "std outside"]
_MEANING = (
    "Fit is the root mean squared error, or the accuracy; calibration the coverage of 90 % intervals, or the expected "
    "calibration error; std that of a new observation, or of the class probability under uncertain weights, at new rows and "
    "half a unit away from the data."
)
_CLAIM = (
    "The paper says that the fit is excellent and that uncertainty increases away from the data. Tenfold is the aim, for "
    "regression: a probability's std is at most 0.5."
)


def synthetic(every: Rows) -> list[str]:
    by_method = {method: [row for row in every["synthetic"] if row["method"] == method] for method in ("paper", "ours")}
    found = ["## Synthetic sets", "", wrapped(f"BALI on the paper's three sets. {_MEANING} {_CLAIM}")]
    for method, rows in by_method.items():
        if not rows:
            continue
        text = "The defaults: `BALIRegressor()` and `BALIClassifier()`."
        if method == "paper":
            text = (
                f"The paper's settings: three hidden layers of {rows[0]['settings']['width']} tanh units, "
                f"{rows[0]['n_steps']:,} steps of all rows."
            )
        body = [[row["set"], *_scores(row), f"{row['std_outside'] / row['std_inside']:.1f}"] for row in rows]
        kind = "synthetic" if method == "paper" else "defaults"
        found += ["", wrapped(text), "", *table(["set", *_HEADER, "outside / inside"], body), *_images(rows, kind)]
    return found


def bayes_by_backprop(every: Rows) -> list[str]:
    rows = every["bbb-synthetic"]
    bali = {row["set"]: row for row in every.get("synthetic", ()) if row["method"] == "paper"}
    text = (
        f"The same networks by Bayes by backprop, {rows[0]['n_steps']:,} steps. The paper says that it underfits where the "
        "KL divergence has a large weight and is overconfident where it has a small one. Here it underfits if its error on "
        f"the training rows is more than {UNDERFITS:g} times BALI's, and is overconfident if its std away from the data is "
        f"less than BALI's by a factor of {OVERCONFIDENT:g}."
    )
    body = []
    for row in rows:
        other = bali.get(row["set"])
        verdicts = [EMPTY, EMPTY]
        if other is not None:
            verdicts = [yes_or_no(underfits(row, other)), yes_or_no(is_overconfident(row, other))]
        body.append([row["set"], f"{row['kl_weight']:g}", *_scores(row), *verdicts])
    header = ["set", "KL weight", *_HEADER, "underfits", "overconfident"]
    return ["## Bayes by backprop", "", wrapped(text), "", *table(header, body), *_images(rows, "bbb")]


def local_reparametrisation(every: Rows) -> list[str]:
    rows = every["local-reparam"]
    text = (
        "BALI-W draws weights, BALI-L the outputs of every row (local reparametrisation). The paper compares them on four "
        "classification sets and says that BALI-L learns a bit faster and overfits more; here they are on the synthetic "
        "sets. The half-way step is the first at which the training log-likelihood has made half of its way; the gap is "
        "that between training and new rows at the end."
    )
    body = [
        [
            row["set"],
            row["variant"],
            f"{row['log_likelihood_train']:.3f}",
            f"{row['log_likelihood_test']:.3f}",
            f"{half_way(row['steps'], row['train']):,}",
            f"{row['log_likelihood_train'] - row['log_likelihood_test']:.3f}",
        ]
        for row in rows
    ]
    header = ["set", "variant", "log-likelihood, training", "new rows", "half-way step", "gap"]
    return [
        "## Local reparametrisation on the synthetic sets",
        "",
        wrapped(text),
        "",
        *table(header, body),
        *_images(rows, "local"),
    ]


def half_way(steps: Sequence[int], values: Sequence[float]) -> int:
    """The first step at which a curve has made half of its way from its first value to its highest."""
    middle = 0.5 * (values[0] + max(values))
    return next(step for step, value in zip(steps, values, strict=True) if value >= middle)


def _images(rows: Sequence[Line], kind: str) -> list[str]:
    names = dict.fromkeys(row["set"] for row in rows)
    return [line for name in names for line in ("", f"![{name}](images/{image_name(kind, name)})")]
