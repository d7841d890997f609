"""Other people's Bayesian networks, through their own packages, in the shape of `Training`."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from bali.predictive.mixtures import ClassPredictive
from bali_benchmarks.performance.trainings import AdamTraining, OptimizerTraining, Training, perceptron


class MissingPeerError(ImportError):
    """A package of the comparison cannot be used; the message names the extra that has it."""


def peer(module: str) -> ModuleType:
    """The module of another package."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they import is not ours to mend
            return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # the latter where torchvision was built for another torch
        package = module.partition(".")[0]
        raise MissingPeerError(
            f"the comparison needs {package!r}, which cannot be imported ({error}): pip install 'bali-benchmarks[peers]'"
        ) from error


class LaplaceTraining(AdamTraining):
    """A Laplace approximation after Adam's training: laplace-torch (Daxberger et al., 2021), Kronecker factors (KFAC).

    The last layer's is linearised and the probit gives its probabilities in closed form, the package's default. For all
    layers that takes a Jacobian of every weight for each row; networks with drawn weights give their mean instead.
    """

    def __init__(self, module: nn.Module, learning_rate: float, layers: str, prior_precision: float) -> None:
        super().__init__(module, learning_rate)
        self.layers, self.prior_precision = layers, prior_precision
        self.posterior: Any = None

    def finish(self, x: Tensor, y: Tensor) -> None:
        laplace = peer("laplace")
        subset = "last_layer" if self.layers == "last" else "all"
        self.posterior = laplace.Laplace(self.module, "classification", subset_of_weights=subset, hessian_structure="kron")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.posterior.fit(DataLoader(TensorDataset(x, y), batch_size=1000))
        self.posterior.prior_precision = self.prior_precision

    def predict(self, x: Tensor, n_samples: int) -> ClassPredictive:
        if self.posterior is None:
            return super().predict(x, n_samples)
        how: dict[str, Any] = {"pred_type": "glm", "link_approx": "probit"}
        if self.layers == "all":
            how = {"pred_type": "nn", "link_approx": "mc", "n_samples": n_samples}
        parts = [self.posterior(rows, **how).detach() for rows in torch.split(x, 1000)]
        return ClassPredictive(torch.cat(parts)[None])

    def put_back(self, state: Any) -> None:
        super().put_back(state)
        self.posterior = None


class IVONTraining(OptimizerTraining):
    """Improved variational online Newton (Shen et al., 2024): ivon-opt."""

    def __init__(self, module: nn.Module, learning_rate: float, n_data: int) -> None:
        super().__init__(module, peer("ivon").IVON(module.parameters(), lr=learning_rate, ess=n_data))

    def step(self, x: Tensor, y: Tensor) -> None:
        optimizer: Any = self.optimizer
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            self.loss(x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    @torch.no_grad()
    def predict(self, x: Tensor, n_samples: int) -> ClassPredictive:
        optimizer: Any = self.optimizer
        parts = []
        for _ in range(n_samples):
            with optimizer.sampled_params():
                parts.append(self.module(x).softmax(-1))
        return ClassPredictive(torch.stack(parts))


class BackpropTraining(OptimizerTraining):
    """Bayes by backprop (Blundell et al., 2015): bayesian-torch's layers, reparametrised weights, under Adam.

    Prior, start and loss are those of the package's guide. Its divergence is a mean over weights, divided by the number of
    rows in the batch: not the weight that the divergence has in the evidence's bound.
    """

    def __init__(self, module: nn.Module, learning_rate: float) -> None:
        conversion = peer("bayesian_torch.models.dnn_to_bnn")
        conversion.dnn_to_bnn(
            module,
            {
                "prior_mu": 0.0,
                "prior_sigma": 1.0,
                "posterior_mu_init": 0.0,
                "posterior_rho_init": -3.0,
                "type": "Reparameterization",
                "moped_enable": False,
            },
        )
        super().__init__(module, torch.optim.Adam(module.parameters(), lr=learning_rate))
        self.divergence = conversion.get_kl_loss

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.module(x), y) + self.divergence(self.module) / len(x)

    @torch.no_grad()
    def predict(self, x: Tensor, n_samples: int) -> ClassPredictive:
        return ClassPredictive(torch.stack([self.module(x).softmax(-1) for _ in range(n_samples)]))


class EnsembleTraining(Training):
    """Networks that Adam trains from different initial weights, mixed (Lakshminarayanan et al., 2017)."""

    def __init__(self, sizes: Sequence[int], seed: int, learning_rate: float, members: int) -> None:
        seeds = range(1000 * seed, 1000 * seed + members)
        self.members = [AdamTraining(perceptron(sizes, s), learning_rate) for s in seeds]

    def step(self, x: Tensor, y: Tensor) -> None:
        for member in self.members:
            member.step(x, y)

    def predict(self, x: Tensor, n_samples: int) -> ClassPredictive:
        parts = [member.predict(x, 1).component_probabilities for member in self.members]
        return ClassPredictive(torch.cat(parts))

    def kept(self) -> Any:
        return [member.kept() for member in self.members]

    def put_back(self, state: Any) -> None:
        for member, own in zip(self.members, state, strict=True):
            member.put_back(own)
