"""Parameters without a posterior: normalisation layers, scalars, modules left out by name.

They are point estimates that an ordinary torch optimizer moves, by the gradient of the mean log-likelihood that a step's
backward pass gives anyway.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bali.conjugate.linalg import NumericalError

#: Builds an optimizer for a list of parameters, such as `lambda p: torch.optim.Adam(p, lr=1e-3)`.
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

_OPTIMIZER = "/optimizer/"  # no layer's name: keys of layers are "name/what"
_PARAMETER = "/parameter/"


class OtherParameters:
    def __init__(self, parameters: Mapping[str, nn.Parameter], make_optimizer: MakeOptimizer | None) -> None:
        self.parameters = dict(parameters)
        self.optimizer: torch.optim.Optimizer | None = None
        if self.parameters and make_optimizer is not None:
            self.optimizer = make_optimizer(list(self.parameters.values()))
            if not isinstance(self.optimizer, torch.optim.Optimizer):
                raise TypeError(
                    "optimizer must be a function from a list of parameters to a torch optimizer, such as "
                    f"lambda p: torch.optim.Adam(p, lr=1e-3); it returned {type(self.optimizer).__name__}"
                )
            ours = {id(p) for p in self.parameters.values()}
            given = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
            if ours != given:
                raise ValueError("optimizer must be built for exactly the parameters it is given")

    def step(self, gradients: Sequence[Tensor | None], n_rows: float) -> None:
        """Uphill by the mean of `n_rows` rows' gradients, whose sums these are, in the order of `parameters`.

        If the optimizer fails, everything stays what it was.
        """
        if self.optimizer is None:
            return
        for name, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is not None and not bool(torch.isfinite(gradient).all()):
                raise NumericalError(
                    f"the gradient of parameter '{name}' is not finite; lower the optimizer's learning rate"
                )
        kept = [p.detach().clone() for p in self.parameters.values()]
        kept_state = {p: {k: _copied(v) for k, v in state.items()} for p, state in self.optimizer.state.items()}
        kept_grads = [p.grad for p in self.parameters.values()]
        try:
            for parameter, gradient in zip(self.parameters.values(), gradients, strict=True):
                parameter.grad = None if gradient is None else gradient / -n_rows  # optimizers go downhill
            with torch.enable_grad():
                self.optimizer.step()
        except BaseException:
            with torch.no_grad():
                for parameter, value in zip(self.parameters.values(), kept, strict=True):
                    parameter.copy_(value)
            self.optimizer.state.clear()
            self.optimizer.state.update(kept_state)
            raise
        finally:
            for parameter, grad in zip(self.parameters.values(), kept_grads, strict=True):
                parameter.grad = grad

    # --- keep and resume ----------------------------------------------------------------------------------------

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Numbers and names for a file's header, and tensors."""
        tensors = {f"{_PARAMETER}{name}": p.detach().clone() for name, p in self.parameters.items()}
        if self.optimizer is None:
            return {}, tensors
        state = self.optimizer.state_dict()
        meta: dict[str, Any] = {"kind": type(self.optimizer).__name__}
        for part, entries in (("state", state["state"]), ("param_groups", dict(enumerate(state["param_groups"])))):
            meta[part] = {}
            for index, values in entries.items():
                meta[part][str(index)] = {key: _plain(v) for key, v in values.items() if not isinstance(v, Tensor)}
                own = {key: v.clone() for key, v in values.items() if isinstance(v, Tensor)}
                tensors |= {f"{_OPTIMIZER}{part}/{index}/{key}": v for key, v in own.items()}
        return meta, tensors

    def check(self, saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Raises where a saved state is of other parameters or another optimizer."""
        shapes = {f"{_PARAMETER}{name}": tuple(p.shape) for name, p in self.parameters.items()}
        found = {key: tuple(t.shape) for key, t in tensors.items() if key.startswith(_PARAMETER)}
        if shapes != found:
            raise ValueError(
                f"the saved state has parameters without posterior {_shown(found)}, this inference has {_shown(shapes)}"
            )
        mine = self.state_dict()[0]
        if saved.get("kind") != mine.get("kind"):
            raise ValueError(f"the saved state has optimizer {saved.get('kind')}, this inference has {mine.get('kind')}")
        theirs, own = ([g.get("params") for g in meta.get("param_groups", {}).values()] for meta in (saved, mine))
        if theirs != own:
            raise ValueError("the saved state has other groups of parameters in the optimizer than this inference")

    @torch.no_grad()
    def load(self, saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take over a state that `check` found to fit."""
        for name, parameter in self.parameters.items():
            parameter.copy_(tensors[f"{_PARAMETER}{name}"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(self._optimizer_state(saved, tensors))

    def try_state(self, saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Raises anything that the optimizer finds wrong with a saved state; nothing changes."""
        if self.optimizer is not None:
            copy.deepcopy(self.optimizer).load_state_dict(self._optimizer_state(saved, tensors))

    @staticmethod
    def _optimizer_state(saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        parts: dict[str, dict[int, dict[str, Any]]] = {
            part: {int(index): dict(values) for index, values in saved[part].items()} for part in ("state", "param_groups")
        }
        for key, tensor in tensors.items():
            if key.startswith(_OPTIMIZER):
                part, index, what = key.removeprefix(_OPTIMIZER).split("/", 2)
                parts[part][int(index)][what] = tensor.clone()
        groups = [group for _, group in sorted(parts["param_groups"].items())]
        return {"state": parts["state"], "param_groups": groups}


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _plain(value: Any) -> Any:
    """As a file gives it back: tuples become lists."""
    return list(value) if isinstance(value, tuple) else value


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {key.removeprefix(_PARAMETER): shape for key, shape in shapes.items()}
