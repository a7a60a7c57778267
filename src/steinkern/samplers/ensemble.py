"""Independent maximum a posteriori estimates, a particle each: the deep ensemble, to compare with."""

from typing import Any

import optax

from ..core.types import Batch, Key, Points
from ..targets.target import AbstractTarget
from .sampler import AbstractSampler, Info
from .stein import SteinState, as_optimiser, transported


class Ensemble(AbstractSampler):
    """x_i ← x_i + ε s(x_i): every particle climbs to a mode of its own (Lakshminarayanan et al., 2017).

    Not a posterior: nothing keeps particles apart that share a mode. On networks, whose modes are many, their spread
    is a strong reference all the same.
    """

    optimiser: optax.GradientTransformation

    def init(self, target: AbstractTarget, points: Points, batch: Batch = None) -> SteinState:
        return SteinState(points, self.optimiser.init(points), None)

    def step(self, key: Key, state: SteinState, target: AbstractTarget, batch: Batch = None) -> tuple[SteinState, Info]:
        scores = target.scores(state.points, batch)
        return transported(self.optimiser, state, scores, scores, None)

    @property
    def interacting(self) -> bool:
        return False

    @property
    def samples_target(self) -> bool:
        return False


def ensemble(optimiser: Any = None) -> Ensemble:
    """A deep ensemble; `optimiser` is an optax optimiser, or a number for Adagrad with that learning rate."""
    return Ensemble(as_optimiser(optimiser))
