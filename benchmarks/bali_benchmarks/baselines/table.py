"""The methods by name."""

from __future__ import annotations

from bali_benchmarks.baselines.bayes_by_backprop import BayesByBackprop
from bali_benchmarks.baselines.deep_ensemble import DeepEnsemble
from bali_benchmarks.baselines.foof import FOOF
from bali_benchmarks.baselines.global_inducing import GlobalInducing
from bali_benchmarks.baselines.kfac import KFAC
from bali_benchmarks.baselines.laplace import KroneckerLaplace, LastLayerLaplace
from bali_benchmarks.baselines.map import MAP
from bali_benchmarks.baselines.mc_dropout import MCDropout
from bali_benchmarks.baselines.method import Method
from bali_benchmarks.baselines.noisy_adam import NoisyAdam
from bali_benchmarks.baselines.noisy_kfac import NoisyKFAC
from bali_benchmarks.baselines.pbp import PBP
from bali_benchmarks.baselines.vadam import Vadam
from bali_benchmarks.baselines.vogn import VOGN

METHODS: dict[str, type[Method]] = {
    "map": MAP,
    "mc_dropout": MCDropout,
    "bayes_by_backprop": BayesByBackprop,
    "noisy_adam": NoisyAdam,
    "vadam": Vadam,
    "vogn": VOGN,
    "kfac": KFAC,
    "noisy_kfac": NoisyKFAC,
    "pbp": PBP,
    "foof": FOOF,
    "global_inducing": GlobalInducing,
    "deep_ensemble": DeepEnsemble,
    "laplace_last": LastLayerLaplace,
    "laplace_kfac": KroneckerLaplace,
}


def method_class(name: str) -> type[Method]:
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {name!r}")
    return METHODS[name]
