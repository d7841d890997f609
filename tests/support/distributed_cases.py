"""Inferences that several processes run together, and one alone for comparison.

A case is a function from a process's place to tensors.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import bali
from bali.inference.distributed import DistributedError
from bali_benchmarks.performance.distributed_process import bandwidth, measure
from support.networks import batches, data, inference, mlp, randn
from support.sequences import Letters


class Place(NamedTuple):
    """A process among others."""

    group: dist.ProcessGroup | None
    rank: int
    size: int

    def part(self, tensor: Tensor) -> Tensor:
        """Its rows."""
        ends = [round(sum(SHARES[self.size][:r]) * len(tensor)) for r in range(self.size + 1)]
        return tensor[ends[self.rank] : ends[self.rank + 1]]


ALONE = Place(None, 0, 1)

Results = dict[str, Tensor]
#: Of the network that is measured.
SIZES = (6, 20, 4)
#: Shares of the rows that processes get.
SHARES = {1: (1.0,), 2: (0.3, 0.7), 4: (0.1, 0.05, 0.5, 0.35)}


def results(run: bali.LayerwiseInference) -> Results:
    found: Results = {"rows": torch.tensor(run.state.rate.effective_rows), "generator": run.state.generator.get_state()}
    for name, posterior in run.posteriors.items():
        found |= {
            f"{name} mean": posterior.mean,
            f"{name} precision": posterior.precision.dense(),
            f"{name} scale": posterior.scale,
        }
        found |= {f"{name} noise": posterior.noise_mode_factor(), f"{name} weights": run.state.layers[name].weights}
    found |= {f"parameter {name}": p.detach().clone() for name, p in run.module.named_parameters()}
    return found


def inference_at(at: Place, module: nn.Module, likelihood: str = "gaussian", **settings: Any) -> bali.LayerwiseInference:
    """An inference that trains with the processes of this place."""
    with bali.distributed.using(at.group):
        return inference(module, likelihood, **settings)


def train(
    at: Place,
    module: nn.Module,
    likelihood: str = "gaussian",
    *,
    outputs: int = 2,
    weighted: bool = False,
    dtype: torch.dtype = torch.float64,
    steps: int = 5,
    step_sizes: Callable[[int], float] | None = None,
    momentum: float = 0.0,
    narrow: bool = False,
    **settings: Any,
) -> Results:
    x, y = data(likelihood, 60, 4, outputs)
    x, y, module = x.to(dtype), y.to(dtype) if likelihood == "gaussian" else y, module.to(dtype)
    run = inference_at(at, module, likelihood, effective_size=40, **settings)
    weight = torch.rand(24, generator=torch.Generator().manual_seed(3)) * 2 if weighted else None
    if weight is not None:
        weight[2:4] = 0.0  # all that the second of four processes has
    values = []
    for step, (bx, by) in enumerate(batches(x, y, 24, steps), 1):
        stride: dict[str, Any] = {"step_size": step_sizes(step) if step_sizes else None, "momentum": momentum}
        own_weight = None if weight is None else at.part(weight)
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            values.append(run.step(at.part(bx), at.part(by), sample_weight=own_weight, **stride))
    return results(run) | {"log-likelihoods": torch.stack(values)}


def normalised() -> nn.Module:
    """Parameters without a posterior. The batch norm's statistics are fixed: rows would depend on each other otherwise."""
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2)).double()
    module.get_submodule("1").eval()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(0.3 * randn(*p.shape, seed=i) + (p.dim() == 1))
    return module


def images() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.Conv1d(2, 4, 2, padding=1, groups=2), nn.Flatten(), nn.Linear(12, 3)
    ).double()


def letters() -> nn.Module:
    return Letters(4, 3).double()


def fixed(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(0.5 * randn(*p.shape, seed=i))
    return module


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


#: The first optimizer makes torch import much; processes that are forked afterwards need not.
sgd([nn.Parameter(torch.zeros(1))])


def moments() -> Tensor:
    return bali.input_moments(data("categorical", 60, 4, 3)[0])


SAME: dict[str, Callable[[Place], Results]] = {
    "regression": lambda at: train(at, mlp((4, 8, 6, 2))),
    "classification": lambda at: train(at, mlp((4, 8, 6, 3)), "categorical", outputs=3),
    "steps that fall": lambda at: train(at, mlp((4, 8, 6, 2)), step_sizes=lambda step: 0.5 / step),
    "yes or no": lambda at: train(at, mlp((4, 8, 1)), "bernoulli", outputs=1),
    "weights of rows": lambda at: train(at, mlp((4, 8, 6, 2)), weighted=True),
    "weights of rows, classification": lambda at: train(at, mlp((4, 8, 3)), "categorical", outputs=3, weighted=True),
    "float32": lambda at: train(at, mlp((4, 8, 6, 3)), "categorical", outputs=3, dtype=torch.float32, steps=1),
    "float32 regression": lambda at: train(at, mlp((4, 8, 6, 2)), dtype=torch.float32, steps=1),
    "float32, narrow passes": lambda at: train(
        at, mlp((4, 8, 6, 3)), "categorical", outputs=3, dtype=torch.float32, steps=1, narrow=True, reparam="none"
    ),
    "means": lambda at: train(at, mlp((4, 8, 2)), reparam="none", target_noise=False),
    "exact inputs": lambda at: train(
        at, mlp((4, 8, 6, 3)), "categorical", outputs=3, input_moments=moments(), target_noise=False, steps=14
    ),
    "exact inputs, noisy targets": lambda at: train(
        at, mlp((4, 8, 6, 3)), "categorical", outputs=3, input_moments=moments(), momentum=0.5
    ),
    "prior about weights": lambda at: train(at, mlp((4, 8, 2)), about_weights=True),
    "other parameters": lambda at: train(at, normalised(), optimizer=sgd),
    "other parameters, weights of rows": lambda at: train(at, normalised(), optimizer=sgd, weighted=True),
    "convolution": lambda at: train(at, fixed(images()), "categorical", outputs=3),
    "stack": lambda at: stacked(at, target_noise=False, steps=12),
    "momentum": lambda at: train(at, mlp((4, 8, 6, 2)), momentum=0.6),
    "blocks": lambda at: train(at, mlp((4, 10, 3)), "categorical", outputs=3, max_block=4),
    "sequences": lambda at: train(at, fixed(letters()), "categorical", outputs=3),
    "sequences, weights of rows": lambda at: train(at, fixed(letters()), "categorical", outputs=3, weighted=True),
    "sequences, momentum": lambda at: train(at, fixed(letters()), "categorical", outputs=3, momentum=0.5),
    "wide layers": lambda at: train(at, fixed(mlp((4, 150, 2), "relu")), steps=3),
}


def stacked(at: Place, *, steps: int, **settings: Any) -> Results:
    """As many members as outputs of a layer: a diagonal of theirs is square, and no symmetric matrix."""
    x, y = data("categorical", 24, 4, 3)
    module = bali.stack([mlp((4, 5, 3), seed=k) for k in range(5)])
    run = inference_at(at, module, "categorical", effective_size=40, **settings)
    values = [run.step(at.part(x), at.part(y)) for _ in range(steps)]
    return results(run) | {"log-likelihoods": torch.stack(values)}


def accumulated(at: Place) -> Results:
    """Every process in several parts."""
    x, y = data("gaussian", 24, 4, 2)
    run = inference_at(at, mlp((4, 8, 2)))
    x, y = at.part(x), at.part(y)
    for _ in range(3):
        for i in range(at.rank + 1):  # not as many parts on every process
            run.accumulate(x[i :: at.rank + 1], y[i :: at.rank + 1])
        run.step()
    return results(run)


SAME["parts of batches"] = accumulated


def fitted(at: Place) -> Results:
    """`bali.fit`, where every process has all the data; norms have no posterior, and a batch of 24 is shared out."""
    with bali.distributed.using(at.group):
        found = bali.fit(
            fixed(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2)).double()),
            data("gaussian", 80, 4, 2),
            bali.likelihoods.Gaussian(),
            epochs=4,
            batch_size=24,
            seed=0,
            verbose=False,
        )
    means = {f"{name} mean": posterior.mean for name, posterior in found.posteriors.items()}
    return means | {f"other {name}": value for name, value in found.members[0].others.items()}


SAME["bali.fit"] = fitted


def local(at: Place) -> Results:
    """Noise of its own for every row: not the numbers of one process, but the same posterior on all."""
    return train(at, mlp((4, 8, 2)), reparam="local", steps=4)


def another_start(at: Place) -> Results:
    """Other initial weights and another generator on every process."""
    x, y = data("gaussian", 24, 4, 2)
    generator = torch.Generator().manual_seed(100 + at.rank)
    run = inference_at(at, mlp((4, 8, 2), seed=at.rank), generator=generator)
    run.step(at.part(x), at.part(y))
    return results(run)


def batch_norm(at: Place) -> Results:
    """In training mode: each process normalises its own rows, and all have the first one's running statistics."""
    x, y = data("gaussian", 24, 4, 2)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()
    run = inference_at(at, module, optimizer=sgd)
    for _ in range(3):
        run.step(x[at.rank :: at.size], y[at.rank :: at.size])
    return results(run) | {f"buffer {name}": buffer.clone() for name, buffer in module.named_buffers()}


def local_members(at: Place) -> Results:
    """Members whose first layer shares its inputs, and so XᵀX."""
    return stacked(at, steps=3, reparam="local")


def local_members_with_priors(at: Place) -> Results:
    """The same with a prior for each of them: then every one has a precision of its own."""
    return stacked(at, steps=3, reparam="local", prior_variance=torch.arange(1.0, 6.0, dtype=torch.float64))


def local_sequences(at: Place) -> Results:
    return train(at, fixed(letters()), "categorical", outputs=3, reparam="local", steps=3)


ALIKE = {
    "local noise": local,
    "local noise of a stack with several priors": local_members_with_priors,
    "local noise of sequences": local_sequences,
    "local noise of a stack": local_members,
    "another start": another_start,
    "batch norm": batch_norm,
}


def failing(at: Place) -> Results:
    """A row with a NaN on the last process, then inputs whose squares overflow; all fail, and go on together."""
    x, y = data("gaussian", 24, 4, 2)
    run = inference_at(at, mlp((4, 8, 2)))
    x, y = at.part(x), at.part(y)
    run.step(x, y)
    before = results(run)
    spoilt = x.clone()
    if at.rank == at.size - 1:
        spoilt[0, 0] = float("nan")
    messages = []
    for bad in (spoilt, x * 1e200):
        try:
            run.step(bad, y)
        except (bali.NumericalError, DistributedError) as error:
            messages.append(type(error).__name__)
    after = results(run)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert messages[0] == ("NumericalError" if at.rank == at.size - 1 else "DistributedError")
    assert len(messages) == 2
    run.step(x, y)
    return results(run)


def going_on(at: Place) -> Results:
    """Two steps, a file, two more steps from it."""
    x, y = data("gaussian", 24, 4, 2)
    path = Path(os.environ["BALI_TEST_FOLDER"]) / f"run-{at.size}.bali"
    first, second = (inference_at(at, mlp((4, 8, 2), seed=s)) for s in (0, 9))
    for _ in range(2):
        first.step(at.part(x), at.part(y))
    first.save(path)
    second.load(path)
    for _ in range(2):
        second.step(at.part(x), at.part(y))
    return results(second)


def not_saved(at: Place) -> Results:
    """A folder that does not exist: all processes hear of it."""
    run = inference_at(at, mlp((4, 8, 2)))
    with pytest.raises(FileNotFoundError if at.rank == 0 else DistributedError):
        run.save(Path(os.environ["BALI_TEST_FOLDER"]) / "nowhere" / "run.bali")
    return {"failed": torch.ones(1)}


MORE = {"failing": failing, "going on": going_on, "not saved": not_saved}
CASES = SAME | ALIKE | MORE


def all_cases(folder: Path) -> None:
    """With two and with four of four processes; results into files of the folder."""
    torch.set_num_threads(1)
    bali.distributed.start()
    world, rank = dist.group.WORLD, bali.distributed.rank()
    assert isinstance(world, dist.ProcessGroup)
    two = dist.new_group([0, 1])
    for size, group in ((2, two), (4, world)):
        if rank < size:
            assert isinstance(group, dist.ProcessGroup)
            found = {name: case(Place(group, rank, size)) for name, case in CASES.items()}
            torch.save(found, folder / f"results-{size}-{rank}.pt")
    measured = {"parts": measure(list(SIZES), 12, [1, 2, 4], rounds=2, warmup=1), "speed": bandwidth(1000)}
    (folder / f"measured-{rank}.json").write_text(json.dumps(measured))


def endless_training(folder: Path) -> None:
    """Saves after every step and never ends by itself; after five steps it says so."""
    torch.set_num_threads(1)
    bali.distributed.start(timeout=8)
    x, y = bali.distributed.shard(*data("gaussian", 24, 4, 2))
    run = inference(mlp((4, 8, 2)))
    while True:
        run.step(x, y)
        run.save(folder / "run.bali")
        if run.state.step == 5:
            (folder / f"saved-{bali.distributed.rank()}").touch()


def as_process(work: Callable[[Path], None], folder: Path, rank: int, environment: dict[str, str]) -> None:
    """What torchrun does for a process, without anyone who watches over it. Leaves its error in a file."""
    os.environ.update(environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    try:
        work(folder)
    except BaseException:
        (folder / f"error-{rank}").write_text(traceback.format_exc())
        raise
