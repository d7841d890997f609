"""Several processes that train one network: starting them, sharing out rows, and the few messages that they exchange.

`start` joins the processes that `torchrun` started and does nothing in a plain run, `shard` is this process's part of a
batch. An inference that is made after `start` adds up the statistics of all processes in every step (`joint_step.py`), so
that each of them holds the posterior that one process would have found with all the rows.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class DistributedError(RuntimeError):
    """The processes of a run no longer agree: one of them failed, ended, or does not answer."""


def start(timeout: float = 60.0, backend: str | None = None) -> torch.device:
    """Join the processes that `torchrun` started; in a plain run, do nothing. Returns the device this process should use.

    `timeout` is for how many seconds a process waits for the others before it gives up with an error. The longest thing that
    one of them does alone, such as reading its data, must take less. `backend` is NCCL on GPUs and gloo otherwise.
    """
    has_gpu = torch.cuda.is_available() and backend != "gloo"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    if "WORLD_SIZE" in os.environ and not dist.is_initialized():
        chosen = backend or ("nccl" if has_gpu else "gloo")
        dist.init_process_group(chosen, timeout=timedelta(seconds=timeout))
        atexit.register(_leave)
    return device


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """The number of this process, from 0; 0 in a plain run."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """The number of processes; 1 in a plain run."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def shard(*tensors: Tensor) -> tuple[Tensor, ...]:
    """This process's rows of tensors that are the same on all processes: a batch, or the indices of one.

    Every row goes to exactly one process, and processes have numbers of rows that differ by one at most.
    """
    sizes = {len(t) for t in tensors}
    if len(sizes) != 1:
        raise ValueError(f"shard needs tensors with the same number of rows, got {sorted(sizes)}")
    n, here, processes = sizes.pop(), rank(), world_size()
    return tuple(t[n * here // processes : n * (here + 1) // processes] for t in tensors)


_using: list[dist.ProcessGroup | None] = []  # the innermost `using` last


@contextmanager
def using(process_group: dist.ProcessGroup | None) -> Iterator[None]:
    """Inferences that are made inside train with the processes of this group; with None, with this process alone."""
    if process_group is not None and not (dist.is_available() and dist.is_initialized()):
        raise ValueError("a process group is given, but torch.distributed was not started; see bali.distributed.start")
    _using.append(process_group)
    try:
        yield
    finally:
        _using.pop()


def current_group(device: torch.device) -> Group | None:
    """The processes to train with, if there are others than this one: all that were started, or those of `using`."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    found = _using[-1] if _using else dist.group.WORLD
    return Group(found, device) if found is not None and dist.get_world_size(found) > 1 else None


class Group:
    """Messages between the processes of a group. Every process must call the same methods in the same order."""

    def __init__(self, process_group: dist.ProcessGroup, device: torch.device) -> None:
        self.process_group, self.device = process_group, device
        self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sums over all processes, by one message for each type of numbers."""
        found: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            own = {i: t for i, t in enumerate(tensors) if t.dtype == dtype}
            message = torch.empty(sum(t.numel() for t in own.values()), dtype=dtype, device=self.device)
            places = torch.split(message, [t.numel() for t in own.values()])
            for (i, tensor), place in zip(own.items(), places, strict=True):
                found[i] = place.view(tensor.shape).copy_(tensor)
            with self._talking():
                dist.all_reduce(message, group=self.process_group)
        return [found[i] for i in range(len(tensors))]

    def exchange(self, tensors: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Entry r of the result is entry r of process r. The other entries of the argument tell shapes and types only."""
        messages = [_packed(own) if r == self.rank else _space_for(own, self.device) for r, own in enumerate(tensors)]
        with self._talking():
            works = [
                dist.broadcast(message, dist.get_global_rank(self.process_group, r), self.process_group, async_op=True)
                for r, message in enumerate(messages)
                if message.numel()
            ]
            for work in works:
                assert work is not None
                work.wait()
        return [
            list(own) if r == self.rank else _unpacked(message, own)
            for r, (own, message) in enumerate(zip(tensors, messages, strict=True))
        ]

    def from_first(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """These tensors as the first process has them."""
        return self.exchange([tensors] + [[]] * (self.size - 1))[0]

    def objects_from_first(self, compute: Callable[[], Any]) -> Any:
        """What the first process computes; the others get a copy, or the news that it failed."""
        found: list[Any] = [None]
        with self.together():
            if self.rank == 0:
                found = [compute()]
        with self._talking():
            first = dist.get_global_rank(self.process_group, 0)
            dist.broadcast_object_list(found, first, self.process_group, self.device)
        return found[0]

    def copy_first(self, tensors: Sequence[Tensor]) -> None:
        """Write into these tensors what they are on the first process."""
        with torch.no_grad():
            for own, first in zip(tensors, self.from_first(tensors), strict=True):
                own.copy_(first)

    def adopt_first(self, module: torch.nn.Module, generator: torch.Generator) -> None:
        """The first process's parameters, buffers and random numbers for all."""
        self.copy_first([*module.parameters(), *module.buffers()])
        generator.set_state(self.from_first([generator.get_state().to(self.device)])[0].cpu())

    @contextmanager
    def together(self) -> Iterator[None]:
        """Waits for the others at the end of the body; if it fails on one process, it fails on all of them."""
        failed = torch.zeros(1, dtype=torch.float64, device=self.device)
        try:
            yield
        except Exception:
            self.sum([failed + 1])
            raise
        self.check_failures(float(self.sum([failed])[0]))

    def check_failures(self, failures: float) -> None:
        if failures:
            raise DistributedError(
                f"{int(failures)} of the other {self.size - 1} processes failed, and said why; nothing was changed here"
            )

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise DistributedError(
                "a process of this run has ended or does not answer. Files that were saved are complete: start the run "
                f"again, with any number of processes, and load the last one. ({error})"
            ) from error


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers as bytes, the widest type first, so that every part is aligned."""
    if not tensors:
        return torch.empty(0, dtype=torch.uint8)
    return torch.cat([tensors[i].detach().contiguous().reshape(-1).view(torch.uint8) for i in _order(tensors)])


def _space_for(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.empty(sum(t.numel() * t.element_size() for t in tensors), dtype=torch.uint8, device=device)


def _unpacked(message: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    order = _order(like)
    parts = torch.split(message, [like[i].numel() * like[i].element_size() for i in order])
    found = {i: part.view(like[i].dtype).reshape(like[i].shape).clone() for i, part in zip(order, parts, strict=True)}
    return [found[i] for i in range(len(like))]


def _order(tensors: Sequence[Tensor]) -> list[int]:
    return sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
