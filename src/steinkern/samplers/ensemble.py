"""The deep ensemble: one independent maximum a posteriori estimate a particle, for comparison."""

from typing import Any

import optax

from ..core.keywords import helpful_keywords
from ..core.types import Batch, Key, Points
from ..targets.target import AbstractTarget
from .sampler import AbstractSampler, Info
from .stein import SteinState, as_optimiser, move_along


class Ensemble(AbstractSampler):
    """x_i ← x_i + ε s(x_i): every particle climbs to a mode independently (Lakshminarayanan et al., 2017).

    The particles do not approximate the posterior: those of the same mode coincide. On networks, which have many modes,
    their spread is still a strong baseline.
    """

    optimiser: optax.GradientTransformation

    def init(self, target: AbstractTarget, points: Points, batch: Batch = None) -> SteinState:
        return SteinState(points, self.optimiser.init(points), None)

    def step(self, key: Key, state: SteinState, target: AbstractTarget, batch: Batch = None) -> tuple[SteinState, Info]:
        scores = target.scores(state.points, batch)
        return move_along(self.optimiser, state, scores, scores, None)

    @property
    def interacting(self) -> bool:
        return False

    @property
    def samples_target(self) -> bool:
        return False


@helpful_keywords
def ensemble(optimiser: Any = None) -> Ensemble:
    """A deep ensemble; `optimiser` is an optax optimiser, or a number for Adagrad with that learning rate."""
    return Ensemble(as_optimiser(optimiser))
