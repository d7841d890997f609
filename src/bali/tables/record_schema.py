"""What the record of a training may be: the report is made from it, and files come from anywhere."""

from __future__ import annotations

from typing import Any, get_args

from bali.inference.schema import (
    ANY_NUMBER,
    COUNT,
    NOTHING,
    RATE,
    Check,
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
from bali.tables.column_kinds import Kind
from bali.tables.target_column import Target

_VALUE = Number(-1e150, 1e150)  # whose square is a number
_SQUARE = Number(0.0, 1e300)
_NATS = Number(-1.0, 1e6)  # an entropy, up to rounding
_ROW = {"row": ListOf(Either(NOTHING, Truth(), ANY_NUMBER, Text()))}
_PIT = {"pit": ListOf(RATE)}
_REGRESSION = _ROW | _PIT | {name: ListOf(_VALUE) for name in ("y", "mean", "low", "high")}
_REGRESSION |= {"std": ListOf(Number(1e-300, 1e150)), "epistemic": ListOf(_SQUARE), "aleatoric": ListOf(_SQUARE)}
_DURATIONS = _ROW | _PIT | {name: ListOf(_SQUARE) for name in ("y", "median", "low", "high")} | {"event": ListOf(RATE)}
_SHARES = ListOf(RATE)
_CHECKS = Record(
    {
        "rootogram": Record({name: ListOf(_SQUARE, least=1) for name in ("at", "expected", "observed")}),
        "survival": Record(
            {
                "times": ListOf(_SQUARE),
                "groups": ListOf(Record({"rows": COUNT, "predicted": _SHARES, "observed": _SHARES}), least=1),
            }
        ),
    },
    optional=["rootogram", "survival"],
)
_CURVE = ListOf(_VALUE, least=2)
_EFFECT = Record(
    {
        "name": Text(),
        "kind": Choice(get_args(Kind)),
        "importance": _VALUE,
        "error": _VALUE,
        "at": Either(_CURVE, ListOf(Text(), least=2)),
        **dict.fromkeys(("mean", "low", "high", "noise"), _CURVE),
        "class": Text(),
    },
    optional=["noise", "class"],
)
_RANGE = Record({"start": Text(), "low": _VALUE, "high": _VALUE}, optional=["start", "low", "high"])


def check_record(record: Any, target: Target, place: str) -> None:
    """Raises a `SchemaError` if it is not one that `bali fit` of this target makes."""
    by_task = {"classification": _of_classes(list(target.classes)), "durations": _DURATIONS}
    holdout = by_task.get(target.task, _REGRESSION)
    fields: dict[str, Check] = {
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
        "checks": _CHECKS,
        "columns": ListOf(_EFFECT),
        "inputs": MapOf(_RANGE),
    }
    Record(fields, optional=["checks", "columns", "inputs"])(record, place)
    for number, effect in enumerate(record.get("columns", [])):
        if len({len(effect[name]) for name in ("at", "mean", "low", "high", "noise") if name in effect}) > 1:
            raise SchemaError(f"{place}.columns[{number}] has points and curves of different length")
    checks = record.get("checks", {})
    survival = checks.get("survival", {"times": [], "groups": []})
    curves = [group[name] for group in survival["groups"] for name in ("predicted", "observed")]
    bars = checks.get("rootogram", {})
    if any(len(curve) != len(survival["times"]) for curve in curves) or len({len(bar) for bar in bars.values()}) > 1:
        raise SchemaError(f"{place}.checks has curves of different length")
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
