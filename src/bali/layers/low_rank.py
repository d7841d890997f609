"""Adapters of low rank beside frozen layers (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models").

A linear layer xᵀW becomes xᵀW + xᵀAB with A (D_in, rank) and B (rank, D_out). A and B are ordinary `nn.Linear` layers, so
that each has a posterior; B starts at zero, and so the network starts as the one it was.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn


class LowRankAdapted(nn.Module):
    """A linear layer, frozen, and an adapter beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False).to(base.weight)
        self.up = nn.Linear(rank, base.out_features, bias=False).to(base.weight)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def lora(module: nn.Module, names: Collection[str], rank: int) -> nn.Module:
    """Freezes the module and puts adapters beside the linear layers of these names; changes the module and returns it.

    Layers that should be trained in full beside them, such as the last one, get `requires_grad_(True)` afterwards.
    """
    names = [names] if isinstance(names, str) else list(names)
    found = dict(module.named_modules())
    if not names or rank < 1:
        raise ValueError(f"lora needs at least one name and a rank of at least 1, got {names} and {rank}")
    for name in names:
        if type(found.get(name)) is not nn.Linear or name == "":
            raise ValueError(
                f"'{name}' is no nn.Linear inside the module, and only those can have adapters; there are "
                f"{[other for other, child in found.items() if type(child) is nn.Linear and other]}"
            )
    module.requires_grad_(False)
    for name in names:
        base = found[name]
        assert isinstance(base, nn.Linear)
        module.set_submodule(name, LowRankAdapted(base, rank))
    return module
