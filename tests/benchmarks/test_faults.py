"""The campaign of faults: a short one of each subject, and what the runner says."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from bali import files
from bali_benchmarks.commands.faults import SUBJECTS, SubjectName
from bali_benchmarks.commands.main import app
from bali_benchmarks.faults import faults_page
from bali_benchmarks.faults.campaign import FaultError, Outcome, run
from bali_benchmarks.faults.forks import Helper
from bali_benchmarks.faults.original_files import fitted_network, original
from bali_benchmarks.lines import read_lines

#: A minute in all; no try is begun after its subject's part of it.
SECONDS = {
    SubjectName.files: 10,
    SubjectName.tables: 5,
    SubjectName.small: 6,
    SubjectName.kills: 10,
    SubjectName.full: 9,
    SubjectName.writers: 8,
    SubjectName.calls: 9,
}


@pytest.mark.filterwarnings("default")  # of pandas about cells that are neither numbers nor text
@pytest.mark.parametrize("name", list(SubjectName))
def test_a_short_campaign_finds_nothing(name: SubjectName) -> None:
    load, n_tries = SUBJECTS[name]
    campaign = run(name, load(), n_tries, SECONDS[name])
    assert campaign.n_tries > 0
    assert not campaign.failures, str(campaign)


def test_a_crafted_checkpoint_is_refused(tmp_path: Path) -> None:
    intact = original("checkpoint")
    meta, tensors = intact.content()
    one, other = (next(name for name in tensors if name.startswith(start)) for start in ("average", "best/"))
    tensors[one], tensors[other] = torch.zeros(3), torch.zeros(5)
    files.write(tmp_path / "c", intact.kind, meta, tensors)
    with pytest.raises(files.ModelFileError):
        fitted_network(2, tmp_path / "c")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", list(SubjectName))
def test_a_whole_campaign_finds_nothing(name: SubjectName) -> None:
    load, n_tries = SUBJECTS[name]
    campaign = run(name, load(), n_tries, 3600.0, first_seed=10_000)
    assert campaign.n_tries == n_tries
    assert not campaign.failures, str(campaign)


def test_failures_are_told_by_their_seed() -> None:
    def subject(seed: int, folder: Path) -> str:
        assert not list(folder.iterdir())
        if seed == 8:
            raise ValueError("two\nlines")
        return "fine"

    campaign = run("odd", subject, 5, 60.0, first_seed=6)
    assert (campaign.n_tries, campaign.outcomes["fine"]) == (5, 4)
    assert "5 tries" in str(campaign)
    assert "  seed 8: ValueError: two lines" in str(campaign)


def test_every_subject_has_seconds_and_words() -> None:
    assert set(SECONDS) == set(SUBJECTS) == set(SubjectName)
    assert sum(SECONDS.values()) < 60
    assert set(faults_page.SUBJECTS) == {str(name) for name in SubjectName}


def test_what_tries_took_is_kept_and_said(tmp_path: Path) -> None:
    def subject(seed: int, folder: Path) -> Outcome:
        return Outcome("refused", {"seconds to load": 0.1 * seed})

    campaign = run("files", subject, 5, 60.0)
    assert campaign.most == {"seconds to load": pytest.approx(0.4)}
    faults_page.keep(tmp_path / "f.jsonl", campaign, 0)
    assert "Of one try at most 0.4 seconds to load." in faults_page.to_markdown(read_lines(tmp_path / "f.jsonl"))


def test_it_ends_in_time() -> None:
    assert run("none", lambda seed, folder: "fine", 5, -1.0).n_tries == 0


def test_lines_are_kept_by_seed_and_the_page_adds_them_up(tmp_path: Path) -> None:
    out, page = tmp_path / "f.jsonl", tmp_path / "f.md"

    def subject(seed: int, folder: Path) -> str:
        if seed == 7:
            raise FaultError("wrong")
        return "refused"

    for first in (0, 5, 5):
        faults_page.keep(out, run("tables", subject, 5, 60.0, first), first)
    assert [(line["first_seed"], line["tries"]) for line in read_lines(out)] == [(0, 5), (5, 5)]
    page.write_text(faults_page.to_markdown(read_lines(out)))
    assert "## tables: 10 tries, 1 failed" in page.read_text()
    assert "| refused | 9 |" in page.read_text()
    assert "Seed 7: FaultError: wrong." in page.read_text()


def test_the_page_says_what_the_lines_say() -> None:
    root = Path(__file__).parents[2]
    lines = read_lines(root / "results" / "faults.jsonl")
    assert (root / "docs" / "faults.md").read_text(encoding="utf-8") == faults_page.to_markdown(lines)
    assert [failure for line in lines for failure in line["failures"]] == []


def test_a_page_needs_lines(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["faults", "tables", "--tries", "1", "--page", str(tmp_path / "f.md")])
    assert result.exit_code == 2


def test_a_helper_that_ends_is_an_error_and_the_next_task_has_another() -> None:
    def work(task: Any) -> dict[str, Any]:
        if task == "end":
            os.kill(os.getpid(), signal.SIGKILL)
        if task == "grow":
            bytearray(2**33)
        return {"task": task}

    with Helper(work) as helper:
        with pytest.raises(FaultError, match="SIGKILL"):
            helper("end")
        assert helper(1) == {"task": 1}
        with pytest.raises(FaultError, match="MemoryError"):
            helper("grow")
    assert helper.child is None
