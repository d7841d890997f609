"""What the record of a training may be: the report is made from it, and files come from anywhere."""

from __future__ import annotations

from typing import Any

from bali.inference.schema import (
    ANY_NUMBER,
    COUNT,
    NOTHING,
    RATE,
    Choice,
    Either,
    ListOf,
    MapOf,
    Number,
    Record,
    SchemaError,
    Text,
    Truth,
)
from bali.tables.target_column import Target

_VALUE = Number(-1e150, 1e150)  # whose square is a number
_SQUARE = Number(0.0, 1e300)
_NATS = Number(-1.0, 1e6)  # an entropy, up to rounding
_ROW = {"row": ListOf(Either(NOTHING, Truth(), ANY_NUMBER, Text()))}
_REGRESSION = _ROW | {name: ListOf(_VALUE) for name in ("y", "mean", "low", "high")}
_REGRESSION |= {"std": ListOf(Number(1e-300, 1e150)), "epistemic": ListOf(_SQUARE), "aleatoric": ListOf(_SQUARE)}


def check_record(record: Any, target: Target, place: str) -> None:
    """Raises a `SchemaError` if it is not one that `bali fit` of this target makes."""
    holdout = _REGRESSION if target.task == "regression" else _of_classes(list(target.classes))
    fields = {
        "target": Choice([target.name]),
        "task": Choice([target.task]),
        "source": Text(),
        "features": ListOf(Text()),
        "notes": ListOf(Text()),
        "n_rows": COUNT,
        "n_train": COUNT,
        "n_holdout": COUNT,
        "seconds": Number(0.0, 1e12),
        "bali_version": Text(),
        "metrics": MapOf(ANY_NUMBER),
        "holdout": Either(Record({}), Record(holdout)),
    }
    Record(fields)(record, place)
    columns = {name: len(column) for name, column in record["holdout"].items() if name != "classes"}
    if len({*columns.values(), min(record["n_holdout"], max(columns.values(), default=0))}) > 1:
        raise SchemaError(
            f"{place}.holdout has columns of {sorted(columns.values())} rows, and {record['n_holdout']} were held out"
        )


def _of_classes(classes: list[str]) -> dict[str, Any]:
    def all_classes(value: Any, place: str) -> None:
        ListOf(RATE, least=len(classes))(value, place)
        if len(value) > len(classes):
            raise SchemaError(f"{place} has {len(value)} probabilities of {len(classes)} classes")

    return _ROW | {
        "y": ListOf(Number(0, len(classes) - 1, whole=True)),
        "probabilities": ListOf(all_classes),
        "entropy": ListOf(_NATS),
        "mutual_information": ListOf(_NATS),
        "classes": lambda value, place: Choice([classes])(value, place),
    }
