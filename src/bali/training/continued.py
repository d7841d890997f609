"""One fit's posterior as the prior of the next: Laplace's approximation online, a Kronecker product for each layer.

The log joint of the next data has, for every layer, the quadratic form that the last posterior is: with its mean M₀ and
the summed curvature A₀ ⊗ S₀ of all data so far (`Kronecker.plus`), beside the prior's own 1/σ². Nothing of the old data
is needed, and nothing that they said is dropped but what a Kronecker product cannot hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bali.conjugate.matrix_normal import Kronecker
from bali.inference.inputs import Inputs, each, tensors
from bali.inference.joint import JointLayer
from bali.inference.joint_pass import Link
from bali.inference.network import Network
from bali.layers.kinds import is_inside
from bali.predictive.likelihoods import Likelihood
from bali.training.averaging import Point
from bali.training.examples import Examples, InMemory
from bali.training.fitted_values import Member, Units

#: Squared gradients of few held-out examples may by chance be so many times larger than expected, and of many held-out
#: examples by this share of their number; no more is believed.
_MOST_UNSEEN, _SHARE_UNSEEN = 10.0, 0.05


@dataclass(frozen=True)
class Memory:
    """Rows that are kept as they are, and that the posterior's statistics leave to them."""

    rows: InMemory
    n_seen: float  # examples that the posterior rests on, these included


@dataclass(frozen=True)
class LayerPrior:
    mean: Tensor  # M₀
    precision: Kronecker  # A₀ ⊗ S₀, of all examples


@dataclass(frozen=True)
class Prior:
    """What one fit hands to the next; made by `fitted.as_prior()`."""

    layers: list[dict[str, LayerPrior]]  # of each member
    others: list[Point]
    buffers: list[Point]
    noise: Tensor | None  # covariance of a regression's noise
    units: Units | None
    link: Link
    memory: Memory | None

    def check(self, network: Network, members: int, likelihood: Likelihood) -> None:
        """That it belongs to such a network."""
        if (self.noise is not None) != likelihood.has_true_targets:
            raise ValueError("the prior is of a fit with another likelihood; noise and units would not be the same")
        if members not in (1, len(self.layers)):
            raise ValueError(f"the prior has {len(self.layers)} members and {members} are asked for; leave `members` out")
        shapes = {name: tuple(layer.weights().shape) for name, layer in network.layers.items()}
        for name, layer in self.layers[0].items():
            if name not in shapes:
                raise ValueError(
                    f"the prior has a layer '{name}' that the module does not train; layers are {sorted(shapes)}. "
                    "Name what is new in as_prior(new=[...])"
                )
            if shapes[name] != tuple(layer.mean.shape):
                raise ValueError(
                    f"layer '{name}' has weights of shape {shapes[name]} and the prior {tuple(layer.mean.shape)}; if it is "
                    f"new, say so: as_prior(new=['{name}'])"
                )

    @torch.no_grad()
    def start(self, network: Network, member: int) -> None:
        """Put a member's means, and what has no posterior, into the module."""
        for name, layer in self.layers[member].items():
            network.layers[name].assign(layer.mean.to(network.layers[name].weight))
        for name, parameter in network.others.items():
            if name in self.others[member] and self.others[member][name].shape == parameter.shape:
                parameter.copy_(self.others[member][name])
        for name, buffer in network.buffers().items():
            if name in self.buffers[member] and self.buffers[member][name].shape == buffer.shape:
                buffer.copy_(self.buffers[member][name])

    def of(self, layers: Mapping[str, JointLayer], member: int, n_examples: int) -> dict[str, JointLayer]:
        """Layers that are about to be trained on so many examples, with these priors."""
        found = dict(layers)
        for name, prior in self.layers[member].items():
            like = found[name].mean
            earlier = prior.precision.to(like.dtype).scaled(1.0 / n_examples)
            found[name] = replace(found[name], prior_mean=prior.mean.to(like), earlier=earlier)
        return found

    @property
    def n_seen(self) -> float:
        return 0.0 if self.memory is None else self.memory.n_seen


def make_prior(
    members: list[Member],
    noise: Tensor | None,
    units: Units | None,
    link: Link,
    memory: Memory | None,
    forget: float,
    new: Collection[str],
) -> Prior:
    if not 0.0 <= forget <= 1.0:
        raise ValueError(f"forget must be between 0 and 1, got {forget}")
    kept = 1.0 - forget
    if memory is not None:  # rows that are there are no statistics
        kept *= max(0.0, 1.0 - len(memory.rows) / memory.n_seen)
    known = members[0].posteriors
    fresh = {name for name in known if is_inside(name, new)}
    if new and not fresh:
        raise ValueError(f"there are no layers in {sorted(new)}; there are {sorted(known)}")
    layers = [
        {
            name: LayerPrior(
                p.mean, Kronecker.of(p, f"layer '{name}': earlier inputs").scaled(kept * member.unseen.get(name, 1.0))
            )
            for name, p in member.posteriors.items()
            if name not in fresh
        }
        for member in members
    ]
    others = [{n: v for n, v in member.others.items() if not is_inside(n, new)} for member in members]
    return Prior(layers, others, [member.buffers for member in members], noise, units, link, memory)


def penalty(layers: Mapping[str, JointLayer], point: Mapping[str, Tensor]) -> float:
    """What earlier data take from the log joint at a point, in nats an example of the present data."""
    found = 0.0
    for name, layer in layers.items():
        if layer.earlier is not None:
            departure = point[name] if layer.prior_mean is None else point[name] - layer.prior_mean
            found += layer.earlier.half_square(departure)
    return found


@dataclass(frozen=True)
class Joined:
    """Examples, and after them others."""

    first: Examples
    second: Examples

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def take(self, index: Tensor) -> tuple[Inputs, Tensor]:
        n = len(self.first)
        of_second = (index >= n).cpu()
        if not bool(of_second.any()):
            return self.first.take(index)
        if bool(of_second.all()):
            return self.second.take(index - n)
        order = torch.cat([(~of_second).nonzero()[:, 0], of_second.nonzero()[:, 0]]).argsort()
        (x, y), (u, v) = self.first.take(index[~of_second]), self.second.take(index[of_second] - n)
        parts = iter(tensors(u))
        both = each(x, lambda part: torch.cat([part, next(parts).to(part)])[order.to(part.device)])
        return both, torch.cat([y, v.to(y)])[order.to(y.device)]


def remembered(examples: Examples, old: Prior | None, n: int, seed: int) -> Memory | None:
    """n of the examples, old memories among them as likely as new ones are by the data they stand for."""
    if n < 1:
        return None
    kept = 0 if old is None or old.memory is None else len(old.memory.rows)
    before = 0.0 if old is None else old.n_seen
    n_new = len(examples) - kept
    weight = torch.ones(len(examples), dtype=torch.float64)
    if kept:  # a row in memory stands for all that have been seen before
        weight[n_new:] = before / kept
    n = min(n, len(examples))
    index = torch.multinomial(weight, n, generator=torch.Generator().manual_seed(seed))
    x, y = examples.take(index)
    return Memory(InMemory(each(x, lambda part: part.clone()), y.clone()), n_new + max(before, float(kept)))


def larger_on_unseen(layers: Mapping[str, JointLayer], unseen: Mapping[str, JointLayer], n_unseen: int) -> dict[str, float]:
    """By how much S is larger on the held-out examples, of which `unseen` has it.

    A network is surer of its training examples than of others. A prior made of their gradients would forget
    (docs/decisions/0020-curvature-as-on-unseen.md).
    """
    found, most = {}, max(_MOST_UNSEEN, _SHARE_UNSEEN * n_unseen)
    for name, layer in layers.items():
        expected, measured = layer.gradients, unseen[name].gradients
        if expected is not None and measured is not None:  # else nothing is held out
            sizes = [float(s.diagonal(dim1=-2, dim2=-1).sum()) for s in (measured, expected)]
            found[name] = min(max(sizes[0] / max(sizes[1], 1e-30), 1.0), most)
    return found
