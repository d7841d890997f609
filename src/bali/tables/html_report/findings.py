"""What the numbers say, in sentences for somebody who is not a statistician."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import stats

from bali.tables.html_report import holdout
from bali.tables.html_report.holdout import ClassHoldout, DurationHoldout, Holdout, RegressionHoldout
from bali.tables.html_report.wording import number, percent, plural, shortened

#: With fewer held-out rows, every score is a rough guess.
FEW_ROWS = 100
#: Below this ratio of largest to smallest stated uncertainty, it does not tell rows apart.
SAME_UNCERTAINTY = 1.1


class Finding(NamedTuple):
    tone: Literal["good", "attention", "neutral"]
    text: str


def findings(held: Holdout | None, record: Mapping[str, Any]) -> list[Finding]:
    """In the order in which a reader asks: how good, how honest, how useful is the uncertainty, how sure is all this."""
    if held is None:
        return [Finding("attention", "No rows were held out, so nothing can be said about how well the model predicts.")]
    if isinstance(held, RegressionHoldout):
        found: list[Finding | None] = [
            _errors(held, record),
            _intervals(held, record),
            _knows_its_errors(held),
            _where_from(held),
        ]
    elif isinstance(held, DurationHoldout):
        found = [_order(record), _spread(held, record)]
    else:
        found = [_accuracy(held, record), _confidence(held), _knows_its_mistakes(held), _where_from(held)]
    n = record["n_holdout"]
    if n < FEW_ROWS:
        were = "was" if n == 1 else "were"
        found.append(Finding("neutral", f"Only {plural(n, 'row')} {were} held out: other rows would give other numbers."))
    return [finding for finding in found if finding is not None]


# --- regression -------------------------------------------------------------------------------------------------


def _errors(held: RegressionHoldout, record: Mapping[str, Any]) -> Finding:
    error = record["metrics"].get("mae", float(np.abs(held.residual).mean()))
    guess = float(np.abs(held.y - np.median(held.y)).mean())
    text = (
        f"Predictions are off by {number(error)} on average. Always answering the same typical value would be off by "
        f"{number(guess)}."
    )
    if error < 0.95 * guess:
        return Finding("good", f"{text} So the model removes {percent(1 - error / guess)} of that error.")
    return Finding("attention", f"{text} So the model has learnt little that helps on new rows.")


def _intervals(held: RegressionHoldout, record: Mapping[str, Any]) -> Finding:
    n = record["n_holdout"]
    inside = record["metrics"].get("coverage_90", float(held.inside.mean()))
    low, high = (float(end) for end in holdout.chance_range(n, 0.9))
    text = f"Of the 90\u202f% intervals, {percent(inside)} hold the true value"
    chance = f"chance alone accounts for {percent(low)} to {percent(high)} of {plural(n, 'row')}"
    if inside < low:
        return Finding("attention", f"{text}, too few ({chance}): the model is surer than it should be.")
    if inside > high:
        return Finding("attention", f"{text}, more than promised ({chance}): it could be surer than it is.")
    return Finding("good", f"{text}, as promised ({chance}).")


def _knows_its_errors(held: RegressionHoldout) -> Finding | None:
    if len(held.y) < 20:
        return None
    ends = np.quantile(held.std, [0.05, 0.95])
    if ends[1] < SAME_UNCERTAINTY * ends[0]:
        return Finding("neutral", "The stated uncertainty is nearly the same for all rows, so it does not tell them apart.")
    error = np.abs(held.residual)
    surer, less_sure = np.array_split(error[np.argsort(held.std, kind="stable")], 2)
    text = (
        f"In the half of the rows that it is least sure about, errors average {number(float(less_sure.mean()))}; in the "
        f"other half, {number(float(surer.mean()))}."
    )
    together = stats.spearmanr(held.std, error)
    return _about_weak_spots(float(together.statistic), float(together.pvalue), text)


# --- durations --------------------------------------------------------------------------------------------------


def _order(record: Mapping[str, Any]) -> Finding | None:
    if "concordance" not in record["metrics"]:
        return None
    share = record["metrics"]["concordance"]
    text = (
        f"Of two rows, the one that lasted longer was predicted to in {percent(share)} of the cases; guesses have 50\u202f%."
    )
    return Finding("good" if share > 0.55 else "attention", text)


def _spread(held: DurationHoldout, record: Mapping[str, Any]) -> Finding:
    n, inside = record["n_holdout"], record["metrics"].get("coverage_90", float((np.abs(held.pit - 0.5) <= 0.45).mean()))
    low, high = (float(end) for end in holdout.chance_range(n, 0.9))
    text = (
        f"{percent(inside)} of the durations lie in their 90\u202f% interval (those not over yet counted by their chances)"
    )
    if low <= inside <= high:
        return Finding("good", f"{text}, as promised.")
    return Finding(
        "attention", f"{text}: the model is {'surer than it should be' if inside < low else 'less sure than it could be'}."
    )


# --- classification ---------------------------------------------------------------------------------------------


def _accuracy(held: ClassHoldout, record: Mapping[str, Any]) -> Finding:
    accuracy = record["metrics"].get("accuracy", float(held.correct.mean()))
    counts = np.bincount(held.y, minlength=len(held.classes))
    commonest, share = shortened(held.classes[int(counts.argmax())]), counts.max() / counts.sum()
    text = (
        f"The predicted class is right for {percent(accuracy)} of the rows. Always answering “{commonest}” would be right "
        f"for {percent(share)}."
    )
    return Finding("good" if accuracy > share else "attention", text)


def _confidence(held: ClassHoldout) -> Finding:
    stated, observed = float(held.confidence.mean()), float(held.correct.mean())
    # Right or wrong are coin tosses with the stated probabilities; 1.96 for the 95 % of `holdout.CHANCE`.
    spread = 1.96 * float(np.sqrt((held.confidence * (1 - held.confidence)).sum())) / len(held.y)
    text = f"It claims to be right {percent(stated)} of the time and is right {percent(observed)} of the time"
    if observed < stated - spread:
        return Finding("attention", f"{text}: it is surer than it should be.")
    if observed > stated + spread:
        return Finding("attention", f"{text}: it could be surer than it is.")
    return Finding("good", f"{text}: no more of a difference than chance makes.")


def _knows_its_mistakes(held: ClassHoldout) -> Finding | None:
    mistakes = int((~held.correct).sum())
    if len(held.y) < 20 or mistakes == len(held.y):
        return None
    if mistakes == 0:
        return Finding("neutral", "There were no mistakes, so it cannot be seen whether it is less sure where it is wrong.")
    least_sure = np.argsort(held.entropy, kind="stable")[-(-4 * len(held.y) // 5) :]
    caught = int((~held.correct[least_sure]).sum())
    text = (
        f"The fifth of the rows that it is least sure about holds {number(caught)} of the {plural(mistakes, 'mistake')}."
        if mistakes > 1
        else f"Its one mistake is {'' if caught else 'not '}in the fifth of the rows that it is least sure about."
    )
    apart = stats.mannwhitneyu(held.entropy[~held.correct], held.entropy[held.correct])
    by_chance = mistakes * (len(held.y) - mistakes) / 2
    return _about_weak_spots(float(apart.statistic) - by_chance, float(apart.pvalue), text)


# --- both -------------------------------------------------------------------------------------------------------


def _about_weak_spots(association: float, p_value: float, text: str) -> Finding:
    """Of uncertainty with error; the p-value is that of none."""
    if p_value > 1 - holdout.CHANCE:
        return Finding("neutral", f"Whether it is less sure where it is wrong, these rows do not tell for certain. {text}")
    if association > 0:
        return Finding("good", f"The model knows where it is weak. {text}")
    return Finding("attention", f"It is surer where it is wrong than where it is right. {text}")


def _where_from(held: RegressionHoldout | ClassHoldout) -> Finding:
    """What more rows could do about the uncertainty."""
    if isinstance(held, RegressionHoldout):
        own = float(held.epistemic.mean() / np.mean(held.epistemic + held.aleatoric))
    else:
        own = float(held.mutual_information.mean() / max(held.entropy.mean(), 1e-300))
    return Finding(
        "neutral",
        f"About {percent(own)} of the uncertainty is the model's own, which more rows would reduce; the rest lies in the "
        "data, and only better or more columns would help.",
    )
