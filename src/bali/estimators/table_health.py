"""Is a fitted table sound, and what was chosen for it? A row of numbers per layer, and sentences where something is off."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import Any

from bali.estimators.recipe import Recipe
from bali.inference.health import HealthTable
from bali.training.table_posterior import TablePosterior


@dataclass(frozen=True)
class LayerLine:
    """A layer of one stack; mean over its members, and the worst of them for the condition number."""

    name: str
    n_inputs: int  # the bias counts
    n_outputs: int
    effective_dof: float  # inputs that the rows decide, and not the prior: Σ a / (a + λ) with λ the prior's precision
    condition_number: float  # of XᵀX plus that

    def problems(self) -> list[str]:
        return []

    def row(self) -> dict[str, Any]:
        return {
            "layer": self.name,
            "inputs": self.n_inputs,
            "outputs": self.n_outputs,
            "dof": self.effective_dof,
            "condition": self.condition_number,
        }


@dataclass(frozen=True)
class TableHealth(HealthTable):
    chosen: dict[str, str]  # what was decided on held-out rows
    layers: list[LayerLine]
    refused: int  # steps that were not taken
    drift: tuple[str, ...] = ()  # what is to be said of a stream

    @property
    def problems(self) -> list[str]:
        """What is wrong, and what helps, a sentence each."""
        found = list(self.drift)
        if self.refused:
            found.append(f"{self.refused} steps would have ruined the fit and were not taken; look for extreme values in X")
        return found

    def __str__(self) -> str:
        return "\n".join([*(f"{name}: {value}" for name, value in self.chosen.items()), super().__str__()])

    def _repr_html_(self) -> str:
        chosen = "".join(f"<p>{html.escape(f'{name}: {value}')}</p>" for name, value in self.chosen.items())
        return chosen + super()._repr_html_()


def table_health(
    recipe: Recipe, posterior: TablePosterior, encodings: list[str], scores: dict[str, float], refused: int
) -> TableHealth:
    """Of what was fitted."""
    chosen = {"columns": " and ".join(dict.fromkeys(encodings)), "likelihood": recipe.stacks[0].likelihood.replace("_", " ")}
    if posterior.is_regression:
        rows = posterior.row_noise
        noise = "the same in every row" if rows is None else "of each row its own"
        noise += "" if rows is None or rows.sees < len(posterior.stacks) else " by near rows"
        noise += ", by which rows count" if posterior.by_precision else ""
        tails = "" if posterior.noise_dof is None else f", tails of {posterior.noise_dof:.0f} degrees of freedom"
        chosen["noise"] = noise + tails
    if posterior.heaps:
        trios = zip(posterior.heaps, posterior.heaps[1:], posterior.heaps[2:], strict=False)
        times = sorted(((f / math.sqrt(below * above), k) for k, (below, f, above) in enumerate(trios, 1)), reverse=True)
        shown = ", ".join(f"{ratio:.1f} times as many of {k}" for ratio, k in times[:3])
        chosen["heaps"] = f"beside their neighbours {shown}"
    shapes = dict.fromkeys("-".join(map(str, stack.layer_sizes)) for stack in recipe.stacks)
    chosen["networks"] = f"{posterior.n_members} of {' and '.join(shapes)}"
    if len(scores) > 1:
        chosen["held-out log-likelihood"] = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
    layers = []
    for number, stack in enumerate(posterior.stacks):
        for depth, layer in enumerate(stack.layers):
            curvature = layer.input_values * layer.output_values.mean(-1, keepdim=True)
            prior = 1.0 / layer.prior_variance
            dof = (curvature / (curvature + prior)).sum(-1).mean().item()
            condition = ((curvature.amax(-1) + prior) / (curvature.amin(-1) + prior)).max().item()
            n_in, n_out = layer.mean.shape[-2:]
            layers.append(LayerLine(f"{number}.{depth}", n_in, n_out, dof, condition))
    return TableHealth(chosen, layers, refused)
