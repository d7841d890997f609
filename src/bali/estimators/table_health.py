"""Is a fitted table sound, and what was chosen for it? A row of numbers per layer, and sentences where something is off."""

from __future__ import annotations

import html
import warnings
from dataclasses import dataclass
from typing import Any

from bali.estimators.recipe import Recipe
from bali.inference.health import HealthWarning
from bali.training.table_posterior import TablePosterior


@dataclass(frozen=True)
class LayerLine:
    """A layer of one stack; mean over its members, and the worst of them for the condition number."""

    name: str
    n_inputs: int  # the bias counts
    n_outputs: int
    effective_dof: float  # inputs that the rows decide, and not the prior: Σ a / (a + λ) with λ the prior's precision
    condition_number: float  # of XᵀX plus that


@dataclass(frozen=True)
class TableHealth:
    chosen: dict[str, str]  # what was decided on held-out rows
    layers: list[LayerLine]
    n_rows: float
    refused: int  # steps that were not taken
    drift: tuple[str, ...] = ()  # what is to be said of a stream

    @property
    def problems(self) -> list[str]:
        """What is wrong, and what helps, a sentence each."""
        found = list(self.drift)
        if self.refused:
            found.append(f"{self.refused} steps would have ruined the fit and were not taken; look for extreme values in X")
        return found

    @property
    def is_sound(self) -> bool:
        return not self.problems

    def warn(self, stacklevel: int = 2) -> None:
        for problem in self.problems:
            warnings.warn(problem, HealthWarning, stacklevel=stacklevel + 1)

    def __str__(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.chosen.items()]
        lines.append(f"{'layer':<12}{'inputs':>8}{'outputs':>9}{'dof':>10}{'condition':>12}")
        for layer in self.layers:
            numbers = f"{layer.n_inputs:>8}{layer.n_outputs:>9}{layer.effective_dof:>10.4g}{layer.condition_number:>12.2g}"
            lines.append(f"{layer.name:<12}{numbers}")
        return "\n".join(lines + self.problems)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_json(self) -> dict[str, Any]:
        return {"chosen": self.chosen, "problems": self.problems, "refused": self.refused}


def table_health(
    recipe: Recipe, posterior: TablePosterior, encodings: list[str], scores: dict[str, float], refused: int
) -> TableHealth:
    """Of what was fitted."""
    chosen = {"columns": " and ".join(dict.fromkeys(encodings)), "likelihood": recipe.stacks[0].likelihood.replace("_", " ")}
    if posterior.is_regression:
        noise = "the same in every row" if posterior.row_noise is None else "of each row its own"
        tails = "" if posterior.noise_dof is None else f", tails of {posterior.noise_dof:.0f} degrees of freedom"
        chosen["noise"] = noise + tails
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
    return TableHealth(chosen, layers, recipe.n_rows, refused)
