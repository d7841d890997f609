"""`bali.fit`: any torch module, nothing to set."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bali.conjugate import linalg
from bali.inference.distributed import current_group
from bali.inference.first_pass import output_layer_of
from bali.inference.joint import JointLayer
from bali.inference.joint_pass import Link, joint_pass
from bali.inference.network import Network
from bali.inference.width import layer_posterior
from bali.predictive.likelihoods import Categorical, Gaussian, Likelihood, as_likelihood
from bali.training import course as courses
from bali.training import fit_checkpoints
from bali.training.averaged_points import load_point
from bali.training.course import Course, Job
from bali.training.examples import Examples, Part, as_examples
from bali.training.fit_calibration import calibrated
from bali.training.fit_progress import fit_bar
from bali.training.fitted import Calibration, Fitted, History, Member, Units
from bali.training.rules import Rules
from bali.training.rules import batch_size as default_batch_size

#: Examples that the width of the posterior is measured on, unless there is nothing else to do.
_FOR_WIDTH = 20_000
#: Examples to look at before training.
_FOR_LOOK = 64


def fit(
    module: nn.Module,
    data: Any,
    likelihood: Likelihood | type[Likelihood] | nn.Module,
    *,
    validation: Any = 0.1,
    members: int = 1,
    epochs: int | None = None,
    batch_size: int | None = None,
    only: Collection[str] | None = None,
    seed: int | None = None,
    device: str | torch.device = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    verbose: bool = True,
) -> Fitted:
    """Infer a posterior over the weights of a network. Nothing has to be set.

    Some examples are held out. Training goes in phases with ever smaller steps, each of which ends when the held-out
    examples gain no more, and starts from the best point of the one before; then the width of the posterior, and the noise
    or temperature of predictions, are fitted on the held-out examples. Ctrl-C ends it with the best so far.

    Parameters
    ----------
    module
        Any `nn.Module` whose trainable layers are of the kinds in docs/layers.md; other trainable parameters, such as those
        of norms, get values without a posterior. It is copied and stays as it is; what is frozen stays frozen.
    data
        (x, y), a `Dataset` or a `DataLoader` of pairs. x is a tensor or array, or a tuple or dict of them that the module's
        forward takes. Targets of a regression need not be standardised.
    likelihood
        One of `bali.likelihoods` (docs/likelihoods.md), such as `Gaussian()` or `Categorical()`, or a loss of torch.
    validation
        The share of the examples that is held out, or other data to take their place.
    members
        Networks that are started independently, one after the other, and mixed in predictions.
    epochs
        At most so many times through the data; by default training stops by itself. With 0 the module's weights stay the
        mean, and one pass over the data gives the posterior around them, as for a pretrained network.
    batch_size
        Examples of a step; by default between 32 and 256.
    only
        Names of modules: everything outside of them stays as it is. The prior is then about the weights that the module
        has, as for a pretrained network.
    checkpoint
        A file that is written now and then, and gone on from if it is there.

    With several processes (`bali.distributed`), all of them call it with the same data; each takes its part of every batch,
    and all of them get the same result.
    """
    likelihood = as_likelihood(likelihood)
    if members < 1:
        raise ValueError(f"members must be at least 1, got {members}")
    module = copy.deepcopy(module)
    where = _device(module, device)
    module.to(where)
    dtype = next(p.dtype for p in module.parameters() if p.is_floating_point())
    seed, group = int(torch.randint(2**31, ())) if seed is None else seed, current_group(where)
    if group is not None:  # the first process gives the start
        seed = int(group.objects_from_first(lambda: seed))
        group.copy_first([*module.parameters(), *module.buffers()])
    examples, loader_size = as_examples(data, where, dtype)
    examples, held_out = _held_out(examples, validation, seed, where, dtype)
    is_pretrained = only is not None or epochs == 0
    network = Network(module, has_optimizer=True, only=only)
    link, units = _link(network, likelihood, examples, weights_stay=epochs == 0)
    if units is not None:
        examples, held_out = (_standardised(part, units) for part in (examples, held_out))
    size = batch_size or loader_size or default_batch_size(len(examples))
    per_epoch = max(1, len(examples) // size)
    max_steps = None if epochs is None else epochs * per_epoch
    job = Job(network, likelihood, link, examples, held_out, size, max_steps, seed, Rules(), where, group)
    history, found, noise = History(), list[Member](), None
    shows = verbose and (group is None or group.rank == 0)
    with fit_bar(members) if shows else nullcontext(lambda *_: None) as on_score:
        for number in range(members):
            if number:
                _reset(module, seed + number)
            member_job = replace(job, seed=seed + number)
            course, outcome = _course(member_job, is_pretrained, checkpoint, number, on_score)
            found.append(_member(member_job, course, whole=epochs == 0))
            noise = course.best_noise if course.best_noise is not None else course.noise
            history.scores.append(course.scores)
            history.losses.append(course.losses)
            history.outcomes.append(outcome)
            history.refused += course.refused
            if outcome == "interrupted":
                break
    fitted = Fitted(network, likelihood, found, Calibration(noise=noise), units, link, history, seed)
    fitted.calibration = calibrated(fitted, job)
    if history.refused:
        warnings.warn(
            f"{history.refused} steps would have ruined the fit and were not taken; look for extreme values in x",
            RuntimeWarning,
            stacklevel=2,
        )
    return fitted


def _course(
    job: Job,
    prior_about_weights: bool,
    checkpoint: str | os.PathLike[str] | None,
    number: int,
    on_score: Callable[[Job, Course], None],
) -> tuple[Course, str]:
    """A member's training, from a checkpoint if there is one."""
    course = courses.start(job, prior_about_weights)
    if job.max_steps == 0:
        score, course.noise = courses.held_out_score(job) if len(job.held_out) else (float("nan"), course.noise)
        course.best, course.best_score, course.best_noise = course.point(job.network), score, course.noise
        return course, "epochs"
    keep = on_score
    if checkpoint is not None:
        fit_checkpoints.load(checkpoint, job, course, number)

        def keep(job: Job, course: Course) -> None:
            if job.group is None or job.group.rank == 0:
                fit_checkpoints.save(checkpoint, job, course, number)
            on_score(job, course)

    outcome = courses.run(job, course, keep)
    if course.best is None:
        course.best = {name: value.clone() for name, value in course.point(job.network).items()}
    return course, outcome


def _member(job: Job, course: Course, *, whole: bool) -> Member:
    """The posterior around the best point: its width is the curvature's there, from a pass over the data."""
    assert course.best is not None
    network, point = job.network, course.best
    load_point(network, point)
    if not whole:  # else weights are what they were, and so are statistics
        courses.refresh_statistics(job)
    n = len(job.examples) if whole else min(len(job.examples), _FOR_WIDTH)
    layers = {
        name: JointLayer(point[name].clone(), layer.prior_mean, layer.prior_variance, layer.label)
        for name, layer in course.layers.items()
    }
    noise = course.best_noise if course.best_noise is not None else course.noise
    layers = curvature(job, layers, n, noise)
    is_linearised = job.likelihood.has_true_targets
    posteriors = {
        name: layer_posterior(layer, len(job.examples), name, is_linearised=is_linearised) for name, layer in layers.items()
    }
    others = {name: parameter.detach().clone() for name, parameter in network.others.items()}
    buffers = {name: buffer.clone() for name, buffer in network.buffers().items()}
    return Member(posteriors, others, buffers)


def curvature(job: Job, layers: dict[str, JointLayer], n: int, noise: Tensor | None) -> dict[str, JointLayer]:
    """The layers with A and S of the first n examples, at the module's weights, in evaluation mode.

    A regression's S is of observations that the model makes up, one noise away from its outputs: the curvature at a Gaussian
    is the same whatever was observed, and training examples, which the network fits too well, would make it too small.
    """
    factor = None if noise is None else linalg.cholesky(noise, "noise of the observations")
    generator = torch.Generator().manual_seed(job.seed)
    job.network.module.eval()
    done = 0
    for start in range(0, n, job.batch_size):
        x, y = job.examples.take(torch.arange(start, min(start + job.batch_size, n)))
        narrow = None if factor is None else factor.to(y.dtype)
        if narrow is not None:
            with torch.no_grad():
                z = job.link(job.network.plain_output(x))
            signs = torch.randint(2, z.shape, generator=generator).to(z) * 2.0 - 1.0
            y = z + signs @ narrow.to(z).mT
        seen = joint_pass(job.network, job.likelihood, job.link, x, y, narrow)
        done += seen.n_examples
        for name, layer in layers.items():
            moments, share = seen.statistics[name].moments, seen.n_examples / done
            assert moments.xx is not None
            moments.xx.scale_(1.0 / float(moments.n))
            inputs, gradients = moments.xx, moments.yy / float(moments.n)
            if layer.inputs is not None and layer.gradients is not None:
                inputs = replace(inputs, values=layer.inputs.values.lerp(inputs.values, share))
                gradients = layer.gradients.lerp(gradients, share)
            rows = float(moments.n) / seen.n_examples
            layers[name] = replace(layer, inputs=inputs, gradients=gradients, rows_per_example=rows)
    job.network.train()
    return layers


def _device(module: nn.Module, device: str | torch.device) -> torch.device:
    if device == "auto":
        own = next(module.parameters()).device
        return torch.device("cuda") if own.type == "cpu" and torch.cuda.is_available() else own
    return torch.device(device)


def _held_out(
    examples: Examples, validation: Any, seed: int, device: torch.device, dtype: torch.dtype
) -> tuple[Examples, Examples]:
    """Training and held-out examples."""
    if not isinstance(validation, (int, float)):
        return examples, as_examples(validation, device, dtype)[0]
    if not 0.0 < validation < 1.0:
        raise ValueError(f"validation must be a share between 0 and 1, or data; got {validation}")
    n = len(examples)
    kept = max(1, round(validation * n))
    if n - kept < 1:
        raise ValueError(f"{n} examples are too few to hold some of them out; give validation data of their own")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return Part(examples, order[kept:]), Part(examples, order[:kept])


def _link(network: Network, likelihood: Likelihood, examples: Examples, *, weights_stay: bool) -> tuple[Link, Units | None]:
    """How outputs meet the likelihood, from a look at a few examples; errors that say what to do come from here."""
    x, y = examples.take(torch.arange(min(_FOR_LOOK, len(examples))))
    modes = {m: m.training for m in network.module.modules()}
    network.module.eval()
    with torch.no_grad():
        output, calls = network.forward(x)
    for m, mode in modes.items():
        m.training = mode
    classes_second = (
        not y.is_floating_point()
        and output.dim() == y.dim() + 1 > 2
        and output.shape[1:-1] != y.shape[1:]
        and output.shape[2:] == y.shape[1:]
    )
    if isinstance(likelihood, Categorical):
        z = output.movedim(1, -1) if classes_second else output
        if z.shape[-1] > 1 and bool((z >= 0).all()) and bool(((z.sum(-1) - 1).abs() < 1e-4).all()):
            raise ValueError("the module ends in a softmax; remove it: the likelihood takes logits and applies it itself")
    if not isinstance(likelihood, Gaussian):
        return Link(classes_second), None
    shift, scale = _scales(examples)
    if weights_stay or _answers_in_units(output, y, shift, scale):
        units = Units(shift, scale, True, None)
        return Link(False, shift.to(output), scale.to(output)), units
    return Link(), Units(shift, scale, False, output_layer_of(output, network.layers, calls))


def _answers_in_units(output: Tensor, y: Tensor, shift: Tensor, scale: Tensor) -> bool:
    """Whether outputs explain the targets as they are, as those of a pretrained module do: better than their mean does."""
    y = y.reshape(output.shape).double()
    in_units, standardised = (((z.double() - y) / scale).square().mean() for z in (output, shift + scale * output.double()))
    return bool(in_units < standardised and in_units < 1.0)


def _scales(examples: Examples) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the targets, (D,)."""
    parts = [examples.take(torch.arange(s, min(s + 4096, len(examples))))[1] for s in range(0, len(examples), 4096)]
    y = torch.cat([part.double() for part in parts])
    y = y[:, None] if y.dim() == 1 else y.reshape(-1, y.shape[-1])
    scale = y.std(0) if len(y) > 1 else torch.ones_like(y[0])
    return y.mean(0), torch.where(scale > 0, scale, torch.ones_like(scale))


def _standardised(examples: Examples, units: Units) -> Examples:
    return _Standardised(examples, units)


class _Standardised:
    """Examples with standardised targets."""

    def __init__(self, whole: Examples, units: Units) -> None:
        self.whole, self.units = whole, units

    def __len__(self) -> int:
        return len(self.whole)

    def take(self, index: Tensor) -> tuple[Any, Tensor]:
        x, y = self.whole.take(index)
        dtype = y.dtype if y.is_floating_point() else torch.float32
        y = y[:, None] if y.dim() == 1 else y
        return x, ((y.double() - self.units.shift) / self.units.scale).to(dtype)


def _reset(module: nn.Module, seed: int) -> None:
    """Another start: every module draws its weights anew, as it did when it was made."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for child in module.modules():
            own = [p for p in child.parameters(recurse=False) if p.requires_grad]
            reset = getattr(child, "reset_parameters", None) or getattr(child, "_reset_parameters", None)
            if own and callable(reset):
                reset()
