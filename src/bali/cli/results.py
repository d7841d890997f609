"""The folder that `bali fit` writes: all of it or nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bali.files import settle
from bali.tables.complete_writes import complete_folder
from bali.tables.errors import TableError
from bali.tables.table_model import MODEL_FILE, TableModel

REPORT_FILE, METRICS_FILE, WHAT_IF_FILE = "report.html", "metrics.json", "what-if.html"
_OURS = {MODEL_FILE, REPORT_FILE, METRICS_FILE, WHAT_IF_FILE}


def check_destination(folder: Path, *, force: bool) -> None:
    """Before any work: may this folder be written?"""
    if not folder.parent.is_dir():
        raise TableError(f"no folder at {str(folder.parent)!r} to make {folder.name!r} in")
    if not os.access(folder.parent, os.W_OK):
        raise TableError(f"the folder {str(folder.parent)!r} cannot be written to; name another with --out")
    settle(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise TableError(f"{str(folder)!r} is a file; name another folder with --out")
    present = {path.name for path in folder.iterdir()}
    if present - _OURS:
        raise TableError(f"the folder {str(folder)!r} holds other files; name another with --out")
    if present and not force:
        raise TableError(
            f"the folder {str(folder)!r} holds a model already; name another with --out, or replace it with --force"
        )


def write_results(folder: Path, model: TableModel, *, force: bool) -> None:
    """Model, report and metrics. An older model is replaced only by a complete new one."""
    page = report_page(model)
    with complete_folder(folder, lambda: check_destination(folder, force=force)) as part:
        model.save(part / MODEL_FILE)
        (part / REPORT_FILE).write_text(page, encoding="utf-8")
        (part / METRICS_FILE).write_text(json.dumps(short_record(model), indent=2) + "\n", encoding="utf-8")


def report_page(model: TableModel) -> str:
    from bali.tables.html_report import html  # the other commands do not need what it needs

    return html(model.estimator, model.record, model.encoder.summary)


def short_record(model: TableModel) -> dict[str, Any]:
    """The record of a training without its rows and ranges."""
    return {name: value for name, value in model.record.items() if name not in ("holdout", "inputs", "checks", "columns")}
