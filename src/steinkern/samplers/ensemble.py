"""The deep ensemble: independent maximum a posteriori estimates, for comparison."""

from typing import Any, ClassVar

import optax

from ..core.types import Batch, Key, Points
from ..targets.target import BoundTarget
from .sampler import AbstractSampler, Info, Traits
from .stein import SteinState, as_optimizer, move_along


class Ensemble(AbstractSampler):
    """x_i ← x_i + ε s(x_i): every particle climbs to a mode independently (Lakshminarayanan et al., 2017).

    The particles do not approximate the posterior: those of the same mode coincide. On networks, which have many modes,
    their spread is still a strong baseline.
    """

    optimizer: optax.GradientTransformation
    traits: ClassVar[Traits] = Traits(interacting=False, samples_target=False)

    def init(self, target: BoundTarget, points: Points, batch: Batch = None) -> SteinState:
        return SteinState(points, self.optimizer.init(points), None)

    def step(self, key: Key, state: SteinState, target: BoundTarget, batch: Batch = None) -> tuple[SteinState, Info]:
        scores = target.scores(state.points, batch)
        return move_along(self.optimizer, state, scores, scores, None)


def ensemble(optimizer: Any = None) -> Ensemble:
    """A deep ensemble; `optimizer` is an optax optimizer, or a number for Adagrad with that learning rate."""
    return Ensemble(as_optimizer(optimizer))
