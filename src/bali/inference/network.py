"""Which layers and other parameters of a module are trained; and the module in training and in evaluation."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bali.inference.inputs import Inputs, call
from bali.inference.recording import Recording
from bali.inference.recording import as_output as as_output
from bali.layers.blocks import MAX_BLOCK, with_blocks
from bali.layers.kinds import find_layers, is_inside
from bali.layers.layer import UnsupportedLayerError


class Network(Recording):
    def __init__(
        self,
        module: nn.Module,
        exclude: Collection[str] = (),
        *,
        has_optimizer: bool = False,
        only: Collection[str] | None = None,
        max_block: int = MAX_BLOCK,
        has_true_targets: bool = False,
    ) -> None:
        exclude = (exclude,) if isinstance(exclude, str) else exclude
        only = (only,) if isinstance(only, str) else only
        self.only = only
        for setting, names in (("exclude", exclude), ("only", only or ())):
            unknown = set(names) - {name for name, _ in module.named_modules()}
            if unknown:
                raise ValueError(f"{setting} names unknown modules {sorted(unknown)}; see module.named_modules()")
        if exclude and not has_optimizer:
            raise ValueError(
                "exclude needs an optimizer that trains what is excluded; to keep it as it is, call requires_grad_(False)"
            )
        found = find_layers(module, exclude, has_optimizer=has_optimizer, only=only)
        layers = with_blocks(found, max_block, keep_last=has_true_targets)
        covered = {parameter for layer in layers.values() for parameter in layer.parameters()}
        others = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and parameter not in covered and (only is None or is_inside(name, only))
        }
        super().__init__(module, layers, others)
        if others and self.members is not None:
            raise UnsupportedLayerError(f"stacked networks cannot have parameters without posterior: {list(others)}")

    def plain_output(self, x: Inputs) -> Tensor:
        """The module's output, with nothing recorded."""
        return as_output(call(self.module, x), self.members)

    def weights(self) -> dict[str, Tensor]:
        return {name: layer.weights() for name, layer in self.layers.items()}

    def train(self) -> None:
        """Training mode, but for modules outside of `only` and for norms that are frozen: they stay as they are."""
        self.module.train()
        for name, module in self.module.named_modules():
            own = list(module.parameters(recurse=False))
            is_frozen = isinstance(module, _NormBase) and bool(own) and not any(p.requires_grad for p in own)
            if is_frozen or (self.only is not None and not is_inside(name, self.only)):
                module.training = False

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode without gradients; on leaving, weights and every module's mode are as they were."""
        modes = {m: m.training for m in self.module.modules()}
        kept = self.weights()
        try:
            self.module.eval()
            with torch.no_grad():
                yield
        finally:
            self.assign(kept)
            for m, mode in modes.items():
                m.training = mode
