"""What stays the same from step to step of an inference."""

from __future__ import annotations

from dataclasses import dataclass, field

from bali.conjugate.linalg import Repairs
from bali.inference.distributed import Group
from bali.inference.network import Network
from bali.inference.other_parameters import OtherParameters
from bali.inference.settings import Settings
from bali.inference.state import LayerState
from bali.predictive.likelihoods import Likelihood


@dataclass(frozen=True)
class Setup:
    network: Network
    likelihood: Likelihood
    settings: Settings
    others: OtherParameters  # trainable, and without a posterior
    group: Group | None = None  # the processes that take every step together with this one
    repairs: Repairs = field(default_factory=Repairs)

    def initial_layers(self) -> dict[str, LayerState]:
        """Every layer before the first step: its prior, and the weights that the module has."""
        self.settings.check_layer_names(list(self.network.layers))
        return {
            name: LayerState(self.settings.prior(layer, is_output=False, repairs=self.repairs), layer.weights())
            for name, layer in self.network.layers.items()
        }
