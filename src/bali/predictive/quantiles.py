"""Quantiles of equal mixtures, by Newton steps that a bracket keeps from going astray, and their CRPS.

The continuous ranked probability score is ∫ (F(t) − 1{y ≤ t})² dt, for every row and column.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bali.predictive.families import Family, Normal, scipy_special

_MAX_STEPS = 200
#: The unbounded scale ends here, where exp and sigmoid are about to leave float64.
_FARTHEST = 700.0


# --- Gaussians and Student-t's, in whichever precision they are ----------------------------------------------------


def mixture_cdf(means: Tensor, scales: Tensor, y: Tensor, dof: float | None = None) -> Tensor:
    """Distribution function at y (n, D) of components with these means and scales, (S, n, D) or broadcast to it."""
    standard = (y - means) / scales
    return (torch.special.ndtr(standard) if dof is None else scipy_special("stdtr", dof, standard)).mean(0)


def mixture_quantile(means: Tensor, scales: Tensor, level: float, dof: float | None = None) -> Tensor:
    """The y (n, D) at which the distribution function has this level, to within rounding."""
    if level > 0.5:  # the lower tail of a distribution function keeps its digits, the upper one does not
        return -mixture_quantile(-means, scales, 1.0 - level, dof)
    # A mixture's quantile lies between the smallest and the largest quantile of its components.
    ends = means + _standard_quantile(level, dof) * scales
    low, high = ends.amin(0), ends.amax(0)
    eps = torch.finfo(means.dtype).eps
    # Newton's error after a step is of the order of the step's square.
    small = 0.1 * eps**0.5 * scales.mean(0) + 2 * eps * torch.maximum(low.abs(), high.abs())

    def error_and_density(y: Tensor) -> tuple[Tensor, Tensor]:
        density = _density((y - means) / scales, dof).div(scales).mean(0)
        return mixture_cdf(means, scales, y, dof) - level, density

    return bracketed_newton(error_and_density, low, high, ends.mean(0), small)


def _standard_quantile(level: float, dof: float | None) -> float:
    from scipy import special

    return float(special.ndtri(level) if dof is None else special.stdtrit(dof, level))


def _density(standard: Tensor, dof: float | None) -> Tensor:
    if dof is None:
        return standard.square().mul(-0.5).exp() / math.sqrt(2 * math.pi)
    constant = math.exp(math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2)) / math.sqrt(dof * math.pi)
    return constant * (1 + standard.square() / dof) ** (-(dof + 1) / 2)


# --- any family, in float64 -----------------------------------------------------------------------------------------


def family_quantile(family: Family, level: float, tolerance: float = 1e-9) -> Tensor:
    """The smallest y (n, D) at which the mixture's distribution function is at least `level`.

    Newton ends with steps of `tolerance` times the smallest width of a component.
    """
    if family.support == "counts":
        return _count_quantile(family, level)
    to_y, log_slope = UNBOUNDED[family.support]

    def error_and_density(t: Tensor) -> tuple[Tensor, Tensor]:
        y = to_y(t)
        density = (family.log_prob(y) + log_slope(t)).exp().mean(0)
        return family.cdf(y).mean(0) - level, density

    centre, width = family.reach()
    step = width.amax(0)
    low, high = (centre - width).amin(0), (centre + width).amax(0)
    farthest = math.inf if family.support == "real" else _FARTHEST
    for end, sign in ((low, -1.0), (high, 1.0)):
        reach = step.clone()
        for _ in range(_MAX_STEPS):
            inside = sign * (family.cdf(to_y(end)).mean(0) - level) < 0  # the quantile is farther out
            if not bool((inside & (end.abs() < farthest)).any()):
                break
            end += torch.where(inside, sign * reach, 0.0)
            end.clamp_(-farthest, farthest)
            reach *= 2
    start = centre.mean(0).clamp(low, high)
    return to_y(bracketed_newton(error_and_density, low, high, start, tolerance * width.amin(0)))


#: From an unbounded t to the support: y(t) and log dy/dt.
UNBOUNDED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "real": (lambda t: t, torch.zeros_like),
    "positive": (torch.exp, lambda t: t),
    "unit": (torch.sigmoid, lambda t: torch.nn.functional.logsigmoid(t) + torch.nn.functional.logsigmoid(-t)),
}


def _count_quantile(family: Family, level: float) -> Tensor:
    like = family.parameters()[0]
    shape = (like.shape[1], family.n_columns)
    low, high = like.new_full(shape, -1.0), like.new_full(shape, 1.0)
    while bool((short := family.cdf(high).mean(0) < level).any()) and float(high.max()) < 2.0**50:
        low, high = torch.where(short, high, low), torch.where(short, 2 * high, high)
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        below = family.cdf(middle).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


def bracketed_newton(
    error_and_density: Callable[[Tensor], tuple[Tensor, Tensor]], low: Tensor, high: Tensor, y: Tensor, small: Tensor
) -> Tensor:
    """The zero of an increasing function with this slope, between low and high; steps below `small` are the last."""
    last = high - low
    done = last == 0
    eps = torch.finfo(y.dtype).eps
    for _ in range(_MAX_STEPS):
        if bool(done.all()):
            break
        error, density = error_and_density(y)
        low, high = torch.where(error < 0, y, low), torch.where(error < 0, high, y)
        newton = y - error / density
        # Halve the bracket where Newton leaves it, or does not halve its own steps.
        astray = ~((newton >= low) & (newton <= high)) | (2 * error.abs() > (last * density).abs())
        proposed = torch.where(astray, 0.5 * (low + high), newton)
        last = proposed - y
        y = torch.where(done, y, proposed)
        done |= (~astray & (last.abs() <= small)) | (high - low <= 2 * eps * y.abs())
    return y


# --- continuous ranked probability scores -----------------------------------------------------------------------------


#: More components have more pairs than an integral has points.
_MOST_PAIRED = 256
#: Numbers held at once.
AT_ONCE = 2**21
#: The integral ends at the first and the last of these quantiles, and its first panels at all of them. What is beyond enters
#: squared; logarithms of positive numbers may have so long tails that it still counts at 1 − 1e-8.
_LEVELS = (1e-8, 0.02, 0.25, 0.5, 0.75, 0.98, 1 - 1e-8, 1 - 1e-13)
#: Of a panel, relative to the distance of the 25 % and the 75 % quantile.
_TOLERANCE = 3e-7
_MAX_SPLITS = 40

# Gauss–Kronrod, 7 and 15 points: half of the nodes, from the end to the middle, and their weights.
_NODES = (
    0.991455371120812639206854697526329,
    0.949107912342758524526189684047851,
    0.864864423359769072789712788640926,
    0.741531185599394439863864773280788,
    0.586087235467691130294144691693,
    0.405845151377397166906606412076961,
    0.207784955007898467600689403773245,
)
_KRONROD = (
    0.022935322010529224963732008058970,
    0.063092092629978553290700663189204,
    0.104790010322250183839876322541518,
    0.140653259715525918745189590510238,
    0.169004726639267902826583426598550,
    0.190350578064785409913256402421014,
    0.204432940075298892414161999234649,
    0.209482141084727828012999174891714,
)
_GAUSS = (
    0.0,
    0.129484966168869693270611432679082,
    0.0,
    0.279705391489276667901467771423780,
    0.0,
    0.381830050505118944950369775488975,
    0.0,
    0.417959183673469387755102040816327,
)


def crps(family: Family, y: Tensor) -> Tensor:
    """(n, D), for parameters (S, n, D) and y (n, D), some rows after the other."""
    n_components = family.parameters()[0].shape[0]
    numbers_per_row = sum(p[:, 0].numel() for p in family.parameters()) if len(y) else 1
    paired = type(family) is Normal and n_components <= _MOST_PAIRED
    numbers_per_row *= n_components if paired else len(_LEVELS)
    step = max(1, AT_ONCE // max(numbers_per_row, 1))
    found = []
    for start in range(0, len(y), step):
        rows = slice(start, start + step)
        part, observed = family.map(lambda p, rows=rows: p[:, rows].double()), y[rows].double()  # type: ignore[misc]
        if paired:
            found.append(_of_gaussians(part, observed))
        elif family.support == "counts":
            found.append(_of_counts(part, observed))
        else:
            found.append(_integral(part, observed))
    return torch.cat(found).to(family.parameters()[0].dtype) if found else torch.zeros_like(y)


def _of_gaussians(family: Family, y: Tensor) -> Tensor:
    """E|Y − y| − ½ E|Y − Y'|, both in closed form (Grimit et al., 2006)."""
    assert isinstance(family, Normal)
    to_y = _expected_absolute(y - family.loc, family.scale).mean(0)
    spread = (family.variance()[:, None] + family.variance()[None]).sqrt()
    between = _expected_absolute(family.loc[:, None] - family.loc[None], spread).mean((0, 1))
    return to_y - 0.5 * between


def _expected_absolute(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| of a Gaussian."""
    standard = mean / std
    density = standard.square().mul(-0.5).exp() / math.sqrt(2 * math.pi)
    return mean * torch.erf(standard / math.sqrt(2)) + 2 * std * density


def _of_counts(family: Family, y: Tensor) -> Tensor:
    """The sum over counts from one tail to the other; rows whose tail is reached are left out from there on."""
    k = torch.minimum(family_quantile(family, 1e-5), y)
    high = torch.maximum(family_quantile(family, 1 - 1e-5), y)
    below, total = family.cdf(k - 1).mean(0), torch.zeros_like(y)
    row = torch.arange(len(y), device=y.device)
    while len(row):
        below = below + family.log_prob(k).exp().mean(0)
        total[row] += (below - (y[row] <= k).to(y.dtype)).square() * (k <= high)
        k = k + 1
        going_on = (k <= high).any(-1)
        if not bool(going_on.all()):
            row, k, high, below = row[going_on], k[going_on], high[going_on], below[going_on]
            family = family.map(lambda p, keep=going_on: p[:, keep])  # type: ignore[misc]
    return total


def _integral(family: Family, y: Tensor) -> Tensor:
    """Adaptive quadrature: panels whose error is too large are halved, over all rows together."""
    to_y, log_slope = UNBOUNDED[family.support]
    levels = _LEVELS if family.support == "positive" else _LEVELS[:-1]
    quantiles = torch.stack([family_quantile(family, level, tolerance=0.01) for level in levels])
    scale = quantiles[4] - quantiles[2]
    at = _to_unbounded(y, family)
    points = _to_unbounded(torch.cat([quantiles, y[None]]), family).sort(0).values  # (P, n, D)
    left, right = points[:-1].flatten(0, 1), points[1:].flatten(0, 1)
    row = torch.arange(len(y), device=y.device).repeat(len(points) - 1)
    nodes = _symmetric((-1.0, *(-node for node in _NODES), 0.0), y, sign=-1.0)
    kronrod, gauss = (_symmetric((0.0, *weights), y) for weights in (_KRONROD, _GAUSS))
    total = torch.zeros_like(y)
    for split in range(_MAX_SPLITS):
        middle, radius = 0.5 * (left + right), 0.5 * (right - left)
        here, below = family.map(lambda p, row=row: p[:, row]), middle < at[row]  # type: ignore[misc]
        values = []
        for node in nodes:
            t = middle + radius * node
            f = here.cdf(to_y(t)).mean(0)
            values.append(torch.where(below, f, 1 - f).square() * log_slope(t).exp() * radius)
        v = torch.stack(values)
        first, error = torch.tensordot(kronrod, v, 1), torch.tensordot(kronrod - gauss, v, 1).abs()
        for end, node, next_node in ((0, 1, 2), (-1, -2, -3)):
            jump = (v[end] - v[node]).abs()  # a step between the last node and the end, which both rules would miss
            error += torch.where(jump > (v[node] - v[next_node]).abs(), (1 - _NODES[0]) * jump, 0.0)
        bad = (error > _TOLERANCE * scale[row]).any(-1) & (split < _MAX_SPLITS - 1)
        total.index_add_(0, row[~bad], first[~bad])
        if not bool(bad.any()):
            break
        left, right = torch.cat([left[bad], middle[bad]]), torch.cat([middle[bad], right[bad]])
        row = row[bad].repeat(2)
    return total


def _symmetric(half: tuple[float, ...], like: Tensor, sign: float = 1.0) -> Tensor:
    first = torch.tensor(half, dtype=like.dtype, device=like.device)
    return torch.cat([first, sign * first[:-1].flip(0)])


def _to_unbounded(y: Tensor, family: Family) -> Tensor:
    if family.support == "positive":
        return y.log()
    return torch.logit(y, eps=1e-15) if family.support == "unit" else y
