"""Recurrent layers: the gates of a time step are linear maps of its input x and of the hidden state h before it.

| module             | maps (rows of every time step and example)                                     |
|--------------------|--------------------------------------------------------------------------------|
| RNN, RNNCell       | gates: (x, h, 1) to H                                                           |
| LSTM, LSTMCell     | gates: (x, h, 1) to 4 H                                                         |
| GRU, GRUCell       | gates: (x, h, 1) to 2 H; new_input: (x, 1) to H; new_hidden: (h, 1) to H        |

torch has two biases where one will do: their sum is the bias here, the second parameter becomes zero. Of a GRU's third gate
the two parts meet after the hidden one was multiplied, so that they are maps of their own. Layers and directions of one
module have posteriors of their own, named l0, l0_reverse, l1 and so on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bali.layers.layer import Composite, UnsupportedLayerError
from bali.layers.packed import PackedLinear, trainable_layers

State = tuple[Tensor, ...]  # (h,), or (h, c) of an LSTM


class _Step(ABC):
    """One time step of one layer in one direction, as a function of modules."""

    n_states = 1
    n_gates: int  # blocks of rows in a parameter

    def __init__(self, owner: nn.Module, suffix: str) -> None:
        size = owner.hidden_size
        assert isinstance(size, int)
        self.size = size
        biases = [f"bias_ih{suffix}", f"bias_hh{suffix}"] if owner.bias else []
        self.maps = self._maps(owner, [f"weight_ih{suffix}", f"weight_hh{suffix}"], biases)

    def _maps(self, owner: nn.Module, weights: list[str], biases: list[str]) -> dict[str, PackedLinear]:
        return {"gates": PackedLinear(owner, weights, biases, slice(0, self.n_gates * self.size))}

    def gates(self, x: Tensor, h: Tensor) -> Tensor:
        return self.maps["gates"](torch.cat([x, h], dim=-1))

    @abstractmethod
    def __call__(self, x: Tensor, state: State) -> State: ...


class _TanhStep(_Step):
    n_gates = 1

    def __call__(self, x: Tensor, state: State) -> State:
        return (torch.tanh(self.gates(x, state[0])),)


class _ReluStep(_TanhStep):
    def __call__(self, x: Tensor, state: State) -> State:
        return (torch.relu(self.gates(x, state[0])),)


class _LSTMStep(_Step):
    n_states, n_gates = 2, 4

    def __call__(self, x: Tensor, state: State) -> State:
        h, c = state
        write, keep, new, read = self.gates(x, h).chunk(4, dim=-1)
        c = torch.sigmoid(keep) * c + torch.sigmoid(write) * torch.tanh(new)
        return torch.sigmoid(read) * torch.tanh(c), c


class _GRUStep(_Step):
    n_gates = 2

    def _maps(self, owner: nn.Module, weights: list[str], biases: list[str]) -> dict[str, PackedLinear]:
        new = slice(2 * self.size, 3 * self.size)
        return super()._maps(owner, weights, biases) | {
            "new_input": PackedLinear(owner, weights[:1], biases[:1], new),
            "new_hidden": PackedLinear(owner, weights[1:], biases[1:], new),
        }

    def __call__(self, x: Tensor, state: State) -> State:
        (h,) = state
        reset, keep = torch.sigmoid(self.gates(x, h)).chunk(2, dim=-1)
        new = torch.tanh(self.maps["new_input"](x) + reset * self.maps["new_hidden"](h))
        return (new + keep * (h - new),)


def _step_kind(module: nn.Module) -> type[_Step]:
    if isinstance(module, (nn.LSTM, nn.LSTMCell)):
        return _LSTMStep
    if isinstance(module, (nn.GRU, nn.GRUCell)):
        return _GRUStep
    return _ReluStep if module.nonlinearity == "relu" else _TanhStep


class Cell(Composite):
    """`nn.RNNCell`, `nn.LSTMCell` or `nn.GRUCell`: its calls are the time steps."""

    def __init__(self, name: str, module: nn.RNNCellBase) -> None:
        self.module = module
        self.step = _step_kind(module)(module, "")
        self.layers = trainable_layers(name, self.step.maps, self, over_time=True)

    def forward(self, input: Tensor, hx: Tensor | State | None = None) -> Tensor | State:
        with_batch = input.dim() == 2
        x = input if with_batch else input.unsqueeze(0)
        if hx is None:
            state: State = (x.new_zeros(len(x), self.step.size),) * self.step.n_states
        else:
            state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
            state = state if with_batch else tuple(s.unsqueeze(0) for s in state)
        new = self.step(x, state)
        new = new if with_batch else tuple(s.squeeze(0) for s in new)
        return new if self.step.n_states == 2 else new[0]


class Recurrence(Composite):
    """`nn.RNN`, `nn.LSTM` or `nn.GRU`, step by step, with all options but `proj_size`."""

    def __init__(self, name: str, module: nn.RNNBase) -> None:
        if module.proj_size:
            raise UnsupportedLayerError(
                f"module '{name or '(the module itself)'}' (LSTM) has proj_size. Leave it out and put an nn.Linear behind "
                "the LSTM, freeze the module with requires_grad_(False), or name it in `exclude`."
            )
        self.module = self._module = module
        self.name = name
        kind = _step_kind(module)
        directions = ("", "_reverse") if module.bidirectional else ("",)
        #: Of each layer, the steps of its directions.
        self.steps: list[list[_Step]] = []
        maps: dict[str, PackedLinear] = {}
        for layer in range(module.num_layers):
            self.steps.append([kind(module, f"_l{layer}{direction}") for direction in directions])
            for direction, step in zip(directions, self.steps[-1], strict=True):
                maps |= {f"l{layer}{direction}.{own}": packed for own, packed in step.maps.items()}
        self.layers = trainable_layers(name, maps, self, over_time=True)

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Tensor | State]:
        module = self._module
        if not isinstance(input, Tensor):
            raise UnsupportedLayerError(
                f"module '{self.name}' ({type(module).__name__}) was given a packed sequence, in which rows of an example "
                "are not found. Give it padded sequences and pick the outputs you need, or name it in `exclude`."
            )
        with_batch = input.dim() == 3
        x = input if with_batch else input.unsqueeze(1)
        x = x.transpose(0, 1) if with_batch and module.batch_first else x  # (time, n, features)
        states = self._first_states(hx, x, with_batch)
        last: list[State] = []
        for number, steps in enumerate(self.steps):
            outputs = []
            for step, reverse in zip(steps, (False, True), strict=False):
                output, state = _run(step, x, states[len(last)], reverse=reverse)
                outputs.append(output)
                last.append(state)
            x = torch.cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0]
            if module.dropout and module.training and number < module.num_layers - 1:
                x = functional.dropout(x, module.dropout)
        final = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
        if not with_batch:
            x, final = x.squeeze(1), tuple(part.squeeze(1) for part in final)
        elif module.batch_first:
            x = x.transpose(0, 1)
        return x, final if len(final) == 2 else final[0]

    def _first_states(self, hx: Any, x: Tensor, with_batch: bool) -> list[State]:
        """Of each layer and direction."""
        n_states, size = self.steps[0][0].n_states, self._module.hidden_size
        total = sum(len(steps) for steps in self.steps)
        if hx is None:
            return [(x.new_zeros(x.shape[1], size),) * n_states] * total
        given = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        given = given if with_batch else tuple(part.unsqueeze(1) for part in given)
        if len(given) != n_states or any(part.shape != (total, x.shape[1], size) for part in given):
            raise ValueError(
                f"module '{self.name}' needs {n_states} first states of shape {(total, x.shape[1], size)}, got "
                f"{[tuple(part.shape) for part in given]}"
            )
        return list(zip(*given, strict=True))


def _run(step: _Step, x: Tensor, state: State, *, reverse: bool) -> tuple[Tensor, State]:
    """Outputs (time, n, H) and the last state."""
    inputs = list(x.unbind(0))
    outputs = []
    for at in reversed(inputs) if reverse else inputs:
        state = step(at, state)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if reverse else outputs), state
