"""Files of a training under way: members, finished fits, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bali
from bali import files
from bali.training import fit_checkpoints
from bali.training.fitted import Fitted
from support.networks import seeded

OPTIONS: dict[str, Any] = {"verbose": False, "seed": 3, "epochs": 40, "batch_size": 32}


def fit(path: Path | None, members: int = 3, **options: Any) -> Fitted:
    x = torch.randn(100, 2, generator=seeded(0))
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
    data = (x, 10.0 + x[:, 0])
    return bali.fit(net, data, bali.likelihoods.Gaussian(), checkpoint=path, members=members, **(OPTIONS | options))


@pytest.mark.parametrize("stop_at", [1, 3, 4])
def test_a_fit_with_members_goes_on_at_the_member_it_had_reached(
    stop_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(None)
    save, saved = fit_checkpoints.save, list[int]()

    def stopping(path: Any, job: Any, course: Any, member: int) -> None:
        save(path, job, course, member)
        saved.append(member)
        if len(saved) == stop_at:
            raise RuntimeError("the power went off")

    monkeypatch.setattr(fit_checkpoints, "save", stopping)
    with pytest.raises(RuntimeError, match="power"):
        fit(tmp_path / "c.bali")
    reached, stop_at = saved[-1], -1
    saved.clear()
    resumed = fit(tmp_path / "c.bali")
    assert set(saved) <= set(range(reached, 3))  # finished members are not trained again
    assert resumed.history.scores == whole.history.scores
    x = torch.randn(20, 2, generator=seeded(1))
    assert torch.equal(resumed.predict(x).std, whole.predict(x).std)


def test_a_finished_fit_is_read_and_more_epochs_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fit(tmp_path / "c.bali", members=1)
    steps: list[int] = []
    monkeypatch.setattr(fit_checkpoints, "save", lambda path, job, course, member: steps.append(course.step))
    again = fit(tmp_path / "c.bali", members=1)
    assert not steps
    assert again.history == first.history
    longer = fit(tmp_path / "c.bali", members=1, epochs=80)
    assert min(steps) > first.history.scores[0][-1][0]
    assert longer.history.scores[0][: len(first.history.scores[0])] == first.history.scores[0]


def changed(path: Path, kind: str, change: Any) -> None:
    meta, tensors = files.read(path, kind)
    change(meta, tensors)
    files.write(path, kind, meta, tensors)


@pytest.mark.parametrize(
    ("which", "change"),
    [
        ("course", lambda meta, tensors: meta.update(phase=17)),
        ("course", lambda meta, tensors: meta.update(step="many")),
        ("course", lambda meta, tensors: meta.pop("losses")),
        ("course", lambda meta, tensors: tensors.update({"layer/0/mean": torch.zeros(2, 2)})),
        ("course", lambda meta, tensors: tensors["layer/0/mean"].fill_(float("nan"))),
        ("course", lambda meta, tensors: tensors.update({"extra": torch.zeros(1)})),
        ("course", lambda meta, tensors: tensors.pop("best/0")),  # and others of the best are there
        ("course", lambda meta, tensors: tensors.update({"rng": torch.zeros(3, dtype=torch.uint8)})),
        ("member", lambda meta, tensors: meta.update(outcome="perfect")),
        ("member", lambda meta, tensors: tensors.pop("layer/4/mean")),
        ("member", lambda meta, tensors: tensors["layer/4/input_values"].fill_(-1.0)),
    ],
)
def test_files_that_do_not_fit_are_refused(which: str, change: Any, tmp_path: Path) -> None:
    path = tmp_path / "c.bali"
    fit(path, members=1, epochs=20)
    if which == "course":
        fit_checkpoints.member_path(path, 0).unlink()
        changed(path, fit_checkpoints.KIND, change)
    else:
        changed(fit_checkpoints.member_path(path, 0), fit_checkpoints.MEMBER_KIND, change)
    with pytest.raises(bali.ModelFileError, match="remove it, and the training starts anew"):
        fit(path, members=1, epochs=20)
