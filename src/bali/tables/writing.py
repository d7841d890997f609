"""Predictions as columns, and into a file or to standard output, piece by piece; a file appears only when it is complete."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv
from pyarrow import parquet
from torch import Tensor

from bali.predictive.durations import DurationPredictive
from bali.predictive.mixtures import ClassPredictive, Predictive
from bali.predictive.predictive_base import UndefinedError
from bali.tables.cells import is_text
from bali.tables.complete_writes import STDOUT, complete_file
from bali.tables.target_column import Target

Columns = dict[str, NDArray[Any]]


def prediction_columns(
    predictive: Predictive, target: Target, coverage: float, times: Sequence[float] | None = None
) -> Columns:
    """Regression and counts: std² = epistemic_std² + aleatoric_std², all in the units of the target.

    Classification: entropy = epistemic + aleatoric, in nats. Durations: the probability of lasting longer than each of
    `times`, by default those of the target.
    """
    if isinstance(predictive, ClassPredictive):
        return _classes(predictive, target)
    low, high = predictive.interval(coverage)
    if isinstance(predictive, DurationPredictive):
        parts = {"median": predictive.median, "mean": _mean(predictive), "lower": low, "upper": high}
        at = target.survival_times if times is None else list(times)
        survival = predictive.survival(torch.tensor(at)) if at else low[:, :0]
        parts |= {f"survival_{time:g}": survival[:, i : i + 1] for i, time in enumerate(at)}
        return {name: _column(part) for name, part in parts.items() if part is not None}
    found: dict[str, Tensor] = {"mean": predictive.mean}
    if target.task == "counts":
        found["median"] = predictive.median
    found |= {"std": predictive.std, "lower": low, "upper": high}
    if target.task == "counts":
        found["probability_0"] = predictive.cdf(torch.zeros(predictive.n_rows, dtype=torch.float64))
    found |= {"epistemic_std": predictive.epistemic.sqrt(), "aleatoric_std": predictive.aleatoric.sqrt()}
    return {name: _column(part) for name, part in found.items()}


def _mean(predictive: Predictive) -> Tensor | None:
    """Where it exists."""
    try:
        return predictive.mean
    except UndefinedError:
        return None


def _column(part: Tensor) -> NDArray[np.float64]:
    return part[:, 0].double().cpu().numpy()


def _classes(predictive: ClassPredictive, target: Target) -> Columns:
    p = predictive.probabilities.double().cpu().numpy()
    columns: Columns = {"class": np.array(target.classes, dtype=object)[p.argmax(1)]}
    columns |= {f"probability_{label}": p[:, i] for i, label in enumerate(target.classes)}
    parts = {
        "entropy": predictive.entropy,
        "epistemic": predictive.mutual_information,
        "aleatoric": predictive.aleatoric,
    }
    return columns | {name: part.double().cpu().numpy() for name, part in parts.items()}


# --- files ------------------------------------------------------------------------------------------------------------


Write = Callable[[pd.DataFrame], None]
#: What a spreadsheet takes a cell for a formula by, unless it is a number.
_FORMULA = r"[=+\-@\t\r]"


@contextmanager
def prediction_writer(out: str) -> Iterator[Write]:
    """A function that appends rows to `out`: Parquet if its name says so, else CSV; "-" is standard output."""
    if out == STDOUT:
        with _rows_into(sys.stdout.buffer, as_parquet=False) as write:
            yield write
        sys.stdout.flush()
        return
    path = Path(out)
    as_parquet = path.suffix in (".parquet", ".pq")
    with complete_file(path) as part, part.open("wb") as file, _rows_into(file, as_parquet=as_parquet) as write:
        yield write


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Text that a spreadsheet would run as a formula, with an apostrophe before it, which makes it text again."""
    frame = frame.rename(columns=lambda name: _as_text_only(pd.Series([name])).iloc[0])
    return frame.assign(**{str(name): _as_text_only(frame[name]) for name in frame if is_text(frame[name])})


def _as_text_only(column: pd.Series) -> pd.Series:
    text = column.astype(object)
    risky = text.astype(str).str.match(_FORMULA) & pd.to_numeric(text, errors="coerce").isna() & text.notna()
    return text.mask(risky, "'" + text.astype(str))


@contextmanager
def _rows_into(file: IO[bytes], *, as_parquet: bool) -> Iterator[Write]:
    writer: Any = None

    def write(frame: pd.DataFrame) -> None:
        nonlocal writer
        table = pa.Table.from_pandas(frame, preserve_index=False)
        if writer is None:
            writer = _parquet_writer(file, table.schema) if as_parquet else _csv_writer(file, table.schema)
        writer.write_table(table.cast(writer.schema) if as_parquet else table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


def _parquet_writer(file: IO[bytes], schema: pa.Schema) -> parquet.ParquetWriter:
    return parquet.ParquetWriter(file, schema, write_page_checksum=True)


def _csv_writer(file: IO[bytes], schema: pa.Schema) -> arrow_csv.CSVWriter:
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(schema.names)  # with quotes only where they are needed
    file.write(header.getvalue().encode())
    return arrow_csv.CSVWriter(file, schema, write_options=arrow_csv.WriteOptions(include_header=False))
