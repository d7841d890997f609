"""Campaigns as lines of a file, and the page made from them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from bali_benchmarks.faults.campaign import Campaign
from bali_benchmarks.lines import append_line, read_lines, write_lines

#: What is tried, and what must hold.
SUBJECTS = {
    "files": """
Files of `BALIRegressor`, `BALIClassifier`, `bali fit`, `LayerwiseInference.save` and `bali.fit` (fitted networks and
checkpoints), damaged (bits, digits, pieces, ends) or crafted (other values, fields and tensors, most with a digest that is
right). A `ModelFileError` (or, for a state or a checkpoint of other settings, a `ValueError`), or the predictions of the
original; a crafted file may also be another model with finite predictions. At most a second of this process, memory within
twice that of loading the intact file (and 16 MB, which measurements may be off by), no crash.""",
    "tables": """
Damaged CSV, gzip and Parquet files. Refused in one line, or read as Python's own reader reads them.""",
    "small": """
Tables of 2 to 50 rows and 1 to 20 columns (980 tries in a row have every pair), any number of their rows distinct, some
columns constant or of extreme scale. Fitted with finite predictions, or refused with a reason.""",
    "kills": """
`fit`, `fit --force`, `predict`, `save` and a `bali.fit` with a checkpoint, killed at a random moment, at a file operation or
at a byte of a write. The old or the new is there, whole, and the next one leaves nothing else behind; a training that was
killed ends where one that was not does. "Done before": the kill came too late.""",
    "full": """
The same and `report` on a disk that is full: a small one of its own with few bytes left, files that may not grow, or
operations that fail. One line (from Python an `OSError`), the old file as it was, nothing left behind; with room again, the
same call works.""",
    "writers": """
Two or three of `fit --force`, `predict`, `report`, `save` or trainings with one checkpoint at the same place and time, in
some tries one of them killed, and a reader all the while. What is there is whole and of one writer at every moment, trainings end
where one alone does, and nothing else is left.""",
    "calls": """
Odd arrays, parameters, data, modules and paths given to `fit`, `predict` and `score` of the estimators, to `step`,
`accumulate` and `predict` of `LayerwiseInference`, to `bali.fit` and to `bali.load`. A `ValueError` or `TypeError` with a
message (from a module that a tensor does not fit, torch's `RuntimeError`), or finite numbers. A step that is refused changes
nothing: the next one is the same to the last bit.""",
}


def keep(out: Path, campaign: Campaign, first_seed: int) -> None:
    """Add a line; one of the same subject and seed is replaced."""
    of_it = {"subject": str(campaign.subject), "first_seed": first_seed}
    lines = read_lines(out)
    others = [line for line in lines if any(line[key] != value for key, value in of_it.items())]
    if len(others) < len(lines):
        write_lines(out, others)
    found = {"tries": campaign.n_tries, "outcomes": dict(sorted(campaign.outcomes.items()))}
    failures = {str(seed): what for seed, what in campaign.failures.items()}
    took = {"seconds": round(campaign.seconds, 1), "most": {what: round(n, 3) for what, n in campaign.most.items()}}
    append_line(out, of_it | found | {"failures": failures} | took)


def to_markdown(lines: list[dict[str, Any]]) -> str:
    text = [
        "# Faults",
        "",
        "Damage on purpose, by seeds, and what came of it. Written by `bali-benchmarks faults --out results/faults.jsonl",
        "--page docs/faults.md`; a minute of it is part of `make test`. See also [SECURITY.md](../SECURITY.md).",
    ]
    for subject, what in SUBJECTS.items():
        own = [line for line in lines if line["subject"] == subject]
        if not own:
            continue
        outcomes: Counter[str] = Counter()
        for line in own:
            outcomes.update(line["outcomes"])
        failures = {seed: found for line in own for seed, found in line["failures"].items()}
        outcomes["failed"] = len(failures)
        tries, seconds = (sum(line[key] for line in own) for key in ("tries", "seconds"))
        text += ["", f"## {subject}: {tries:,} tries, {len(failures):,} failed", what, ""]
        text += ["| what came of it | tries |", "|---|---|"]
        text += [f"| {outcome} | {n:,} |" for outcome, n in sorted(outcomes.items())]
        seeds = ", ".join(f"{line['first_seed']:,} to {line['first_seed'] + line['tries'] - 1:,}" for line in own)
        text += ["", f"Seeds {seeds}; {seconds:,.0f} s."]
        took = sorted({what for line in own for what in line.get("most", {})}, reverse=True)
        most = {what: max(line["most"][what] for line in own if what in line.get("most", {})) for what in took}
        if most:
            text += [f"Of one try at most {', '.join(f'{amount:.2g} {what}' for what, amount in most.items())}."]
        text += [f"Seed {seed}: {found}." for seed, found in failures.items()]
    return "\n".join(text) + "\n"
