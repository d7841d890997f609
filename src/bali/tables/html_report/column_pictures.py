"""Pictures of what each column does: to the prediction, and to the noise where that depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bali.tables.html_report import task_figures
from bali.tables.html_report.pictures import Picture, picture
from bali.tables.html_report.wording import shortened

#: Columns that are drawn, those that matter most.
MAX_DRAWN = 12
#: Noise is drawn against a column along which it changes by this factor.
NOISE_CHANGES = 1.3


def effects_of_columns(record: Mapping[str, Any]) -> list[Picture]:
    found = []
    for number, effect in enumerate(record.get("columns", [])[:MAX_DRAWN]):
        name, places = shortened(effect["name"]), _categories(effect)
        caption = f"{_what(record, effect)}, averaged over rows that differ in all other columns.{places}"
        found.append(
            picture(f"effect-{number}", name, caption, task_figures.partial_dependence, effect, _axis(record, effect))
        )
        noise = effect.get("noise")
        if noise and max(noise) > NOISE_CHANGES * min(noise):
            caption = f"The noise that is predicted, averaged in the same way.{places}"
            found.append(picture(f"noise-{number}", f"Noise by {name}", caption, task_figures.noise_by_column, effect))
    return found


def _what(record: Mapping[str, Any], effect: Mapping[str, Any]) -> str:
    if "class" in effect:
        return f"The probability of “{shortened(effect['class'])}”"
    return "The probability to last longer than half of all rows" if record["task"] == "durations" else "What is predicted"


def _axis(record: Mapping[str, Any], effect: Mapping[str, Any]) -> str:
    return "probability" if "class" in effect or record["task"] == "durations" else "prediction"


def _categories(effect: Mapping[str, Any]) -> str:
    if effect["kind"] != "category":
        return ""
    listed = ", ".join(f"{i} {shortened(str(name), 24)}" for i, name in enumerate(effect["at"], start=1))
    return f" Categories: {listed}."
