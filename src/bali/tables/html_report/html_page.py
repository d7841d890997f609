"""The report: what was trained, how well it predicts and whether its uncertainty can be trusted, on one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from bali.estimators import BALIEstimator
from bali.tables.html_report import report_figures, task_figures, wording
from bali.tables.html_report.findings import findings
from bali.tables.html_report.holdout import ClassHoldout, DurationHoldout, Holdout, RegressionHoldout, read_holdout
from bali.tables.html_report.svg import Picture, picture
from bali.tables.html_report.task_figures import effects_of_columns
from bali.tables.html_report.wording import shortened


def html(model: BALIEstimator, record: Mapping[str, Any], of_columns: Mapping[str, str] | None = None) -> str:
    """One self-contained page: no scripts, and nothing that is fetched from elsewhere.

    `record` is plain JSON, as `bali fit` keeps it with a model: target, task, source, features, notes, n_rows, n_train,
    n_holdout, seconds, bali_version, metrics (name → number) and holdout. The latter has a list for each of

    - row: what the table calls the row, and y: the true value, for a classification a position in `classes` (or the class
      itself as text);
    - regression: mean, std, low, high (90 % intervals), epistemic, aleatoric (variances);
    - classification: probabilities, entropy, mutual_information; and classes.

    - counts: as regression; durations: y and event (1: over then), median, low, high.

    `checks` and `columns` are what `score_rows` and `column_effects` make, `of_columns` what was done to columns, in
    words. The holdout may hold fewer rows than were held out; then `metrics` are of all of them and the figures of these.
    """
    held = read_holdout(record)
    return wording.template("report.html").render(
        record=record,
        held=held,
        is_regression=record["task"] != "classification",
        findings=findings(held, record),
        metrics=[wording.metric_card(name, value) for name, value in record["metrics"].items()],
        model=_about(model),
        learning=_learning(model),
        calibration=_calibration(held),
        predictions=_predictions(held) + _of_task(record),
        effects=effects_of_columns(record),
        importance=wording.importance(record.get("columns", [])),
        uncertainty=_uncertainty(held),
        confusion=wording.confusion(held) if isinstance(held, ClassHoldout) else None,
        uncertain_rows=wording.most_uncertain(held) if held is not None else None,
        health=wording.health(model.health(), of_columns or {}),
    )


def _about(model: BALIEstimator) -> dict[str, Any]:
    return {
        "kind": type(model).__name__,
        "members": model.n_members_,
        "shapes": list(dict.fromkeys(_shape(stack.layer_sizes, model.activation) for stack in model.recipe_.stacks)),
        "steps": model.n_iter_,
        "watched": bool(model.validation_scores_),
        "settings": {name: wording.setting(value) for name, value in model.get_params().items()},
    }


def _shape(sizes: Sequence[int], activation: str) -> str:
    return f"{' → '.join(map(str, sizes))} units ({activation if len(sizes) > 2 else 'linear'})"


def _learning(model: BALIEstimator) -> Picture | None:
    if not model.loss_curve_:
        return None
    caption = (
        "Negative log-likelihood per row: it punishes errors, and more so where the model was sure. The lines are means "
        "over the networks of the way to see the table that was kept."
    )
    if model.validation_scores_:
        caption += (
            " Validation rows are not trained on: where their line rises while the other falls, the networks only learn the "
            "training rows by heart. So every network keeps the state with its best validation score; the line is that of "
            "the best so far."
        )
    return picture(
        "learning", "Learning curve", caption, report_figures.learning_curve,
        model.loss_curve_, model.validation_steps_, model.validation_scores_,
    )  # fmt: skip


def _calibration(held: Holdout | None) -> list[Picture]:
    if isinstance(held, RegressionHoldout | DurationHoldout):
        return [
            picture(
                "coverage",
                "Do the intervals hold what they promise?",
                "For intervals of every probability, the share of rows whose true value lies inside. On the dashed line is "
                "right; below it the model is too sure, above it too cautious.",
                report_figures.interval_coverage,
                held,
            ),
            picture(
                "truth",
                "Where true values fall in their prediction",
                "Bars of equal height are right. High outer bars: intervals too narrow. A high middle: too wide. Leaning to "
                "one side: predictions too low or too high.",
                report_figures.where_truth_falls,
                held,
            ),
        ]
    if isinstance(held, ClassHoldout):
        what = f"the class “{shortened(held.classes[1])}”" if len(held.classes) == 2 else "the predicted class"
        return [
            picture(
                "reliability",
                "Do the probabilities hold what they promise?",
                f"Rows grouped by the probability stated for {what}: how often it came true, with 95\u202f% ranges for so "
                "many rows, and below how many rows there are. On the dashed line is right.",
                report_figures.reliability,
                held,
            )
        ]
    return []


def _predictions(held: Holdout | None) -> list[Picture]:
    if isinstance(held, RegressionHoldout):
        some = len(report_figures.shown_rows(len(held.y)))
        part = f" A random {wording.number(some)} of the rows are drawn." if some < len(held.y) else ""
        return [
            picture(
                "predicted",
                "Predicted against true",
                "The nearer to the dashed line, the better. Lines are 90\u202f% intervals; one in ten may miss it." + part,
                report_figures.predicted_against_true,
                held,
            ),
            picture(
                "residuals",
                "Residuals",
                "What is left after the prediction, divided by the uncertainty that was stated for the row: most should lie "
                "between −2 and 2, everywhere alike. A pattern, such as a bend or a funnel, is something not learnt." + part,
                report_figures.residuals,
                held,
            ),
        ]
    if isinstance(held, ClassHoldout) and len(held.classes) == 2 and len(np.unique(held.y)) == 2:
        area = roc_auc_score(held.y, held.probabilities[:, 1])
        negative, positive = (shortened(name) for name in held.classes)
        return [
            picture(
                "roc",
                "ROC curve",
                f"If “{positive}” is reported from some probability on: how many of those rows are found, and how many "
                f"“{negative}” rows are false alarms. The area under the curve is {wording.number(float(area))} (guessing "
                "has 0.5).",
                report_figures.receiver_operating_characteristic,
                held,
            )
        ]
    return []


def _of_task(record: Mapping[str, Any]) -> list[Picture]:
    """What fits counts and durations."""
    checks, found = record.get("checks", {}), list[Picture]()
    if "rootogram" in checks:
        caption = (
            "How many rows have each count: bars hang from what the predictions of these rows expect. Where a bar ends "
            "below the dashed line there were more such rows than expected, above it fewer."
        )
        found.append(picture("rootogram", "Rootogram", caption, task_figures.rootogram, checks["rootogram"]))
    if "survival" in checks:
        several = len(checks["survival"]["groups"]) > 1
        groups = "Rows in three groups by their predicted median: short (solid), middling (dashed), long (dotted). "
        caption = "The predicted curves should follow the observed ones (Kaplan and Meier's), and lie apart."
        caption = groups + caption if several else caption
        found.append(picture("survival", "Survival", caption, task_figures.survival, checks["survival"]))
    return found


def _uncertainty(held: Holdout | None) -> Picture | None:
    if isinstance(held, RegressionHoldout):
        return picture(
            "uncertainty",
            "Uncertainty against error",
            "Rows that the model is less sure about should have larger errors. The line is the root mean squared error of "
            "groups of rows with similar uncertainty; it should follow the dashed one.",
            report_figures.error_against_std,
            held,
        )
    if isinstance(held, ClassHoldout):
        return picture(
            "uncertainty",
            "Uncertainty against error",
            "Rows in groups of equal size, from those that the model is surest about to those it is least sure about (by "
            "entropy). Bars should rise to the right and end near the marks.",
            report_figures.error_against_entropy,
            held,
        )
    return None
