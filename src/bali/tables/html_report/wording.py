"""Numbers and names as a reader wants to see them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

_NARROW_SPACE = "\u202f"


def number(value: float) -> str:
    """Four significant digits, with thousands set apart; whole numbers in full."""
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if not math.isfinite(value) or value == 0.0:
        return str(value).replace("-", "−").removesuffix(".0")
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent < 9:
        return f"{value:.3e}".replace("-", "−")
    return f"{value:,.{max(0, 3 - exponent)}f}".replace("-", "−")


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}{_NARROW_SPACE}%".replace("-", "−")


def plural(count: int, noun: str, several: str | None = None) -> str:
    return f"{number(count)} {noun if count == 1 else several or noun + 's'}"


def duration(seconds: float) -> str:
    if seconds < 1.0:
        return "less than a second"
    if seconds < 90.0:
        return plural(round(seconds), "second")
    return plural(round(seconds / 60), "minute") if seconds < 5400.0 else f"{seconds / 3600:.1f} hours"


def setting(value: Any) -> str:
    """A parameter of the estimator."""
    if isinstance(value, list | tuple):
        return ", ".join(str(part) for part in value)
    return "automatic" if value is None else str(value)


def shortened(text: str, length: int = 48) -> str:
    """For names inside a sentence."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


class MetricText(NamedTuple):
    label: str
    meaning: str
    is_share: bool = False  # shown as a percentage


METRICS = {
    "rmse": MetricText("Root mean squared error", "the typical error, large ones counted more; in the target's units"),
    "mae": MetricText("Mean absolute error", "how far off a prediction is on average; in the target's units"),
    "r2": MetricText("R²", "1 is perfect, 0 no better than always predicting the average"),
    "d2": MetricText("D²", "share of the Poisson deviance that is explained; 1 is perfect, 0 no better than the average"),
    "concordance": MetricText(
        "Concordance", "of two rows, the one that lasted longer was predicted to; 1 is perfect, 0.5 guessing"
    ),
    "brier_over_time": MetricText("Integrated Brier score", "squared error of survival probabilities; lower is better"),
    "crps": MetricText("CRPS", "distance between prediction and truth, in the target's units; lower is better"),
    "pit_distance": MetricText(
        "PIT distance", "how far true values are from falling evenly into their predictions; best near 0"
    ),
    "log_likelihood": MetricText("Log-likelihood", "per row; rewards accuracy and honest uncertainty; higher is better"),
    "coverage_90": MetricText(
        "Coverage of 90\u202f% intervals", "true values inside their interval; best near 90\u202f%", True
    ),
    "accuracy": MetricText("Accuracy", "rows whose predicted class is right", True),
    "ece": MetricText("Calibration error", "gap between confidence and accuracy; best near 0", True),
    "auc": MetricText("Area under the ROC curve", "1 is perfect, 0.5 is guessing"),
    "brier": MetricText("Brier score", "squared error of the probabilities, from 0 to 2; lower is better"),
}


def metric_card(name: str, value: float) -> dict[str, Any]:
    """What one tile of the page shows. Unknown metrics go by their own name."""
    text = METRICS.get(name, MetricText(name, ""))
    shown = percent(value) if text.is_share else number(float(value))
    return {"name": name, "label": text.label, "meaning": text.meaning, "shown": shown, "value": repr(float(value))}
