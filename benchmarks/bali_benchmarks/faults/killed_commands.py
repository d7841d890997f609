"""Commands killed at any moment: the old or the new file is there, whole, and the next command leaves nothing else behind.

So are `save` of everything that has it and the checkpoints of `bali.fit`, see `killed_saves`.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from bali.tables import complete_writes
from bali_benchmarks.faults import table_commands as commands
from bali_benchmarks.faults.campaign import FaultError
from bali_benchmarks.faults.killed_saves import killed_checkpoint, killed_save
from bali_benchmarks.faults.killing import Moment, killed

#: About what a command does in its folder.
_MOST_EVENTS = {"fit": 25, "fit --force": 30, "predict": 12}
_LONGEST = 1.5  # seconds


def killed_work(seed: int, folder: Path) -> str:
    """Any of them."""
    return (killed_save if seed % 5 == 3 else killed_checkpoint if seed % 5 == 4 else killed_command)(seed, folder)


def killed_command(seed: int, folder: Path) -> str:
    """One command killed, and one after it that is not."""
    rng = random.Random(seed)
    kind = ["fit", "fit --force", "predict"][seed % 5 % 3]
    in_steps = rng.random() < 0.3  # as on systems that cannot exchange two folders at once
    moment = Moment.drawn(rng, _MOST_EVENTS[kind], _LONGEST, 20_000)
    commands.warm()
    commands.write_table(folder)
    model, out = folder / commands.MODEL, folder / commands.OUT
    out.write_text("old\n")
    if kind != "fit":
        shutil.copytree(commands.older_model(), model)
    predict = commands.predict(folder)
    command = predict if kind == "predict" else commands.fit(folder, 2, force=kind != "fit")

    def work() -> None:
        if in_steps:
            complete_writes.exchange = lambda one, other: False
        commands.command(command)

    was_killed = killed(work, folder, moment)
    if kind == "predict":
        commands.check_predictions(out)
    elif model.exists():
        commands.check_model(model)
    elif kind == "fit --force" and not in_steps:
        raise FaultError(f"{kind}: there is no model")
    had_model = model.exists() or kind == "fit --force"  # which the next command puts back, if it has to
    commands.finished(predict, may_fail=not had_model)
    commands.check_alone(folder, commands.TABLE, commands.MODEL, commands.OUT)
    if commands.check_predictions(out) != had_model:
        raise FaultError(f"{kind}: predictions with no model, or none with one")
    return f"{kind} killed" if was_killed else f"{kind} done before"
