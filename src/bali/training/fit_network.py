"""`bali.fit`: any torch module, nothing to set."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from bali.conjugate import linalg
from bali.inference.distributed import current_group
from bali.inference.frozen import FrozenBody, frozen_body
from bali.inference.joint import JointLayer
from bali.inference.joint_pass import joint_pass
from bali.inference.linearised import layer_posterior
from bali.inference.network import Network
from bali.predictive.likelihoods import Likelihood, as_likelihood
from bali.training import course as courses
from bali.training import fit_checkpoints
from bali.training.averaging import load_point
from bali.training.continued import Joined, Prior, larger_on_unseen, remembered
from bali.training.course import Course, Job
from bali.training.examples import Examples, as_examples, with_features, with_held_out
from bali.training.fit_calibration import calibrated
from bali.training.fit_units import Standardised, link_of, output_shape, warn_of_large_inputs, with_channels_last
from bali.training.fitted import Fitted
from bali.training.fitted_values import Calibration, History, Member, TrainedMember
from bali.training.progress import fit_bar
from bali.training.rules import MAX_BLOCK, Rules
from bali.training.rules import batch_size as default_batch_size

#: Examples that the width of the posterior is measured on, unless there is nothing else to do.
_FOR_WIDTH = 20_000

#: Members, epochs, examples of a batch, rows in memory: whoever asks for more has mistyped.
_MOST = 10**9


@torch.inference_mode(False)
def fit(
    module: nn.Module,
    data: Any,
    likelihood: Likelihood | type[Likelihood] | nn.Module | type[nn.Module],
    *,
    validation: Any = 0.1,
    members: int = 1,
    epochs: int | None = None,
    batch_size: int | None = None,
    only: Collection[str] | None = None,
    prior: Fitted | Prior | None = None,
    memory: int = 0,
    seed: int | None = None,
    device: str | torch.device = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    verbose: bool = True,
    rules: Rules | None = None,
) -> Fitted:
    """Infer a posterior over the weights of a network. Nothing has to be set.

    Some examples are held out. Training goes in phases with ever smaller steps, each of which ends when the held-out
    examples gain no more, and starts from the best point of the one before; then the width of the posterior, and the noise
    or temperature of predictions, are fitted on the held-out examples. Ctrl-C ends it with the best so far.

    With several processes (`bali.distributed`), all of them call it with the same data; each takes its part of every batch,
    and all of them get the same result.

    Parameters
    ----------
    module
        Any `nn.Module` whose trainable layers are of the kinds in docs/layers.md; other trainable parameters, such as those
        of norms, get values without a posterior. It is copied and stays as it is; what is frozen stays frozen.
    data
        (x, y), a `Dataset` or a `DataLoader` of pairs. x is a tensor or array, or a tuple or dict of them that the module's
        forward takes. Targets of a regression need not be standardised.
    likelihood
        One of `bali.likelihoods` (docs/likelihoods.md), such as `Gaussian()` or `Categorical()`, or a loss of torch; the
        class alone will do.
    validation
        The share of the examples that is held out, or other data to take their place.
    members
        Networks that are started independently, one after the other, and mixed in predictions.
    epochs
        At most so many times through the data; by default training stops by itself. With 0 the module's weights stay the
        mean, and one pass over the data gives the posterior around them, as for a pretrained network.
    batch_size
        Examples of a step; by default a sixteenth of them, but between 32 and 512, or fewer where each is many observations.
    only
        Names of modules: everything outside of them stays as it is. The prior is then about the weights that the module
        has, as for a pretrained network.
    prior
        What an earlier fit of the same architecture found (`Fitted`, or its `as_prior(...)`): training starts there, and its
        posterior is the prior of these data, so that what the old data said is kept. Held-out examples are of the new data.
    memory
        So many rows are kept in the result, and trained on again by fits that have it as their prior. Files hold none.
    checkpoint
        A file that is written now and then, and gone on from if it is there. Members that are finished have files of their
        own beside it, with a number at the end.
    rules
        Other numbers of training than those of `bali.training.rules`, for a study of them.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, not {type(module).__name__}")
    if not any(p.is_floating_point() for p in module.parameters()):
        raise ValueError(f"the module, of type {type(module).__name__}, has no parameters to learn")
    if isinstance(likelihood, type) and issubclass(likelihood, nn.Module):
        likelihood = likelihood()
    likelihood = as_likelihood(likelihood)
    for name, count, least in (
        ("members", members, 1),
        ("epochs", epochs, 0),
        ("batch_size", batch_size, 1),
        ("memory", memory, 0),
    ):
        if isinstance(count, Integral) and count > _MOST:
            raise ValueError(f"{name} must be at most {_MOST:,}, got {count}")
        if not (isinstance(count, Integral) and count >= least) and (count is not None or name in ("members", "memory")):
            raise ValueError(f"{name} must be a whole number of at least {least}, got {count!r}")
    module = copy.deepcopy(module)
    where = _device(module, device)
    module.to(where)
    dtype = next(p.dtype for p in module.parameters() if p.is_floating_point())
    seed, group = int(torch.randint(2**31, ())) if seed is None else seed, current_group(where)
    if group is not None:  # the first process gives the start
        seed = int(group.objects_from_first(lambda: seed))
        group.copy_first([*module.parameters(), *module.buffers()])
    examples, loader_size = as_examples(data, where, dtype)
    examples, held_out = with_held_out(examples, validation, seed, where, dtype)
    is_pretrained = only is not None or epochs == 0
    if not is_pretrained and prior is None:
        warn_of_large_inputs(examples)
    network = Network(module, has_optimizer=True, only=only, max_block=MAX_BLOCK)
    if not isinstance(rules, Rules | None):
        raise TypeError(f"rules must be a bali.training.rules.Rules, got {type(rules).__name__}")
    given = prior.as_prior() if isinstance(prior, Fitted) else prior
    if not isinstance(given, Prior | None):
        raise TypeError(f"prior must be what an earlier bali.fit returned, or its as_prior(); got {type(given).__name__}")
    if given is None:
        link, units = link_of(network, likelihood, examples, weights_stay=epochs == 0)
    else:
        given.check(network, members, likelihood)
        members, link, units = len(given.layers), given.link, given.units
        if given.memory is not None:
            examples = Joined(examples, given.memory.rows)
    kept_rows = remembered(examples, given, memory, seed)
    shape = output_shape(network, link, examples)
    if link.classes_second:
        examples, held_out = (with_channels_last(part, len(shape)) for part in (examples, held_out))
    if units is not None:
        examples, held_out = (Standardised(part, units) for part in (examples, held_out))
    examples, held_out, body = _behind_frozen_body(network, examples, held_out)
    observations = shape[1:-1].numel()
    size = batch_size or loader_size or default_batch_size(len(examples), observations)
    per_epoch = max(1, len(examples) // size)
    max_steps = None if epochs is None else epochs * per_epoch
    job = Job(
        network,
        likelihood,
        link,
        examples,
        held_out,
        size,
        max_steps,
        seed,
        rules or Rules(),
        where,
        group,
        observations,
    )
    found, initial = list[TrainedMember](), copy.deepcopy(module.state_dict())
    shows = verbose and (group is None or group.rank == 0)
    standing = nullcontext() if body is None else body.standing()
    with standing, fit_bar(members) if shows else nullcontext(lambda *_: None) as on_score:
        for number in range(members):
            if number:
                _restart(network, initial, seed + number)
            if given is not None:
                given.start(network, number)
            member_job = replace(job, seed=seed + number)
            found.append(_trained(member_job, is_pretrained, given, checkpoint, number, on_score))
            if found[-1].outcome == "interrupted":
                break
    start, all_of_them = Calibration(noise=found[-1].noise), [trained.member for trained in found]
    fitted = Fitted(network, likelihood, all_of_them, start, units, link, History.of(found), seed)
    fitted.memory = kept_rows
    fitted.calibration = calibrated(fitted, job)
    fitted.health().warn(stacklevel=2)
    return fitted


def _trained(
    job: Job,
    prior_about_weights: bool,
    prior: Prior | None,
    checkpoint: str | os.PathLike[str] | None,
    number: int,
    on_score: Callable[[Job, Course], None],
) -> TrainedMember:
    """A member, from its file if it was finished before."""
    known = None if checkpoint is None else fit_checkpoints.load_member(checkpoint, job, number)
    if known is not None:
        return known
    course, outcome = _course(job, prior_about_weights, prior, checkpoint, number, on_score)
    member = _member(job, course, whole=job.max_steps == 0)
    noise = course.best_noise if course.best_noise is not None else course.noise
    trained = TrainedMember(member, noise, course.scores, course.losses, outcome, course.refused)
    if checkpoint is not None and outcome != "interrupted" and (job.group is None or job.group.rank == 0):
        fit_checkpoints.save_member(checkpoint, job, trained, number)
    return trained


def _course(
    job: Job,
    prior_about_weights: bool,
    prior: Prior | None,
    checkpoint: str | os.PathLike[str] | None,
    number: int,
    on_score: Callable[[Job, Course], None],
) -> tuple[Course, str]:
    """A member's training, from a checkpoint if there is one."""
    course = courses.start(job, prior_about_weights)
    if prior is not None:
        course.layers = prior.of(course.layers, number, len(job.examples))
        course.noise = course.noise if prior.noise is None else prior.noise.clone()
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
        name: JointLayer(point[name].clone(), layer.prior_mean, layer.prior_variance, layer.label, earlier=layer.earlier)
        for name, layer in course.layers.items()
    }
    noise = course.best_noise if course.best_noise is not None else course.noise
    is_linearised, unseen = job.likelihood.has_true_targets, dict[str, float]()
    if not is_linearised:
        n_unseen = min(len(job.held_out), _FOR_WIDTH)
        apart = curvature(replace(job, examples=job.held_out), dict(layers), n_unseen, noise)
    layers = curvature(job, layers, n, noise)
    if not is_linearised:
        unseen = larger_on_unseen(layers, apart, n_unseen)
        for name, layer in layers.items():  # what is a sum with earlier data holds it already
            if layer.earlier is not None and layer.gradients is not None:
                layers[name] = replace(layer, gradients=layer.gradients * unseen.pop(name, 1.0))
    posteriors = {
        name: layer_posterior(layer, len(job.examples), name, is_linearised=is_linearised).to(layer.mean.dtype)
        for name, layer in layers.items()
    }
    others = {name: parameter.detach().clone() for name, parameter in network.others.items()}
    buffers = {name: buffer.clone() for name, buffer in network.buffers().items()}
    return Member(posteriors, others, buffers, unseen)


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
        seen = joint_pass(job.network, job.likelihood, job.link, x, y, narrow, sample=start)
        done += seen.n_examples
        for name, layer in layers.items():
            sums, share = seen.sums[name], seen.n_examples / done
            assert sums.xx is not None
            assert sums.yy is not None
            sums.xx.scale_(1.0 / sums.n)
            inputs, gradients = sums.xx, sums.yy / sums.n
            if layer.inputs is not None and layer.gradients is not None:
                inputs = replace(inputs, values=layer.inputs.values.lerp(inputs.values, share))
                gradients = layer.gradients.lerp(gradients, share)
            rows = sums.n / seen.n_examples
            layers[name] = replace(layer, inputs=inputs, gradients=gradients, rows_per_example=rows)
    job.network.train()
    return layers


def _device(module: nn.Module, device: str | torch.device) -> torch.device:
    if device == "auto":
        own = next(module.parameters()).device
        return torch.device("cuda") if own.type == "cpu" and torch.cuda.is_available() else own
    return torch.device(device)


def _behind_frozen_body(
    network: Network, examples: Examples, held_out: Examples
) -> tuple[Examples, Examples, FrozenBody | None]:
    """What a frozen body makes of the examples is computed once, where there is such a body."""
    network.train()
    body = frozen_body(network, examples.take(torch.arange(min(4, len(examples))))[0])
    if body is not None:
        found = with_features(examples, body), with_features(held_out, body)
        if found[0] is not None and found[1] is not None:
            return found[0], found[1], body
    return examples, held_out, None


def _restart(network: Network, initial: Mapping[str, Tensor], seed: int) -> None:
    """Another start: every module that is trained draws its weights anew, as it did when it was made."""
    network.module.load_state_dict(initial)
    trained = {parameter for layer in network.layers.values() for parameter in layer.parameters()}
    trained |= set(network.others.values())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for child in network.module.modules():
            reset = getattr(child, "reset_parameters", None) or getattr(child, "_reset_parameters", None)
            if callable(reset) and any(p in trained for p in child.parameters(recurse=False)):
                reset()
